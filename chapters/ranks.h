// What chapters 7 to 12 and the examples of several ranks have in common: a clean end on a signal,
// results that come back from ranks, progress on a terminal.
#ifndef RANKS_H
#define RANKS_H

#include "chapter.h"

#include <time.h>

// ---- A clean end on the first SIGINT or SIGTERM, with what was measured so far and exit code 130.

#ifdef HAS_SIGNALS
static volatile sig_atomic_t stop_asked;

// A second signal ends the program at once. But one within half a second is the same request, which
// was sent to every process of the job (as Slurm, systemd and kill do it), and came by way of the
// launcher as well: from our parent, the guardian [E4.6]. On a busy machine that takes seconds, so
// the first signal on the other way has five.
CHAPTER_FN void on_signal(int number, siginfo_t *about, void *context) {
    static struct timespec first;
    static bool heard[2];
    const bool parents = about->si_code == SI_USER && about->si_pid == getppid();
    struct timespec now;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stop_asked) first = now;
    stop_asked = 1;
    const double since = (double)(now.tv_sec - first.tv_sec) +
                         1e-9 * (double)(now.tv_nsec - first.tv_nsec);
    const bool again = since < (heard[parents] ? 0.5 : 5.0);
    heard[parents] = true;
    if (again) return;
    signal(number, SIG_DFL);
    raise(number); // comes when this function returns
}

CHAPTER_FN void end_cleanly_on_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO;
    sigaddset(&action.sa_mask, SIGINT), sigaddset(&action.sa_mask, SIGTERM); // one at a time
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
#else
enum { stop_asked };

CHAPTER_FN void end_cleanly_on_signals(void) { }
#endif

// Whether any rank was asked to stop: all ranks call it at the same point, and all hear the same.
CHAPTER_FN bool all_stop(dt_comm *comm) {
    int64_t asked = stop_asked;
    check(comm, dt_allreduce(comm, &asked, 1, DT_I64, DT_MAX, DT_AUTO));
    return asked != 0;
}

// Between two measurements: ends the program if any rank was asked to.
CHAPTER_FN void end_if_asked(dt_comm *comm) {
    if (!all_stop(comm)) return;
    if (dt_comm_rank(comm) == 0)
        printf("stopped early: what stands above was measured, the rest was not\n");
    dt_comm_free(comm);
    exit(exit_code(130));
}

// Between two steps of a loop of one's own: rank 0 writes a checkpoint; NULL: there is to be none.
// One that cannot be written is said, and training goes on.
CHAPTER_FN void keep_checkpoint(const dt_comm *comm, const char *path, const dt_checkpoint *at) {
    if (path && dt_comm_rank(comm) == 0 && dt_checkpoint_save(at, path) != DT_OK)
        fprintf(stderr, "%s; training goes on\n", dt_error());
}

// Both are asked for before any work is done, and must not lie over each other.
CHAPTER_FN void check_saves(dt_comm *comm, const char *program, const char *save,
                            const char *checkpoint) {
    if (save && checkpoint && strcmp(save, checkpoint) == 0 && strncmp(save, "/dev/", 5) != 0)
        usage_error(comm, program, "--save and --checkpoint: each needs a file of its own");
    if (save) check_output(comm, "%s", save);
    if (checkpoint) check_output(comm, "%s", checkpoint);
}

// ---- A job that runs on several ranks brings its results back in its argument. Ranks that are
// ---- threads share it, and only rank 0 writes; processes have one each.

CHAPTER_FN bool brings_result(const dt_comm *comm) {
    return dt_comm_rank(comm) == 0 || strcmp(dt_comm_backend_name(comm), "threads") != 0;
}

// ---- Progress on a terminal: for dt_train_desc.on_step. user points at a bool, whether to show it
// ---- (rank 0, standard error a terminal).

CHAPTER_FN bool show_progress(const dt_progress *progress, void *user) {
    static double shown;
    const bool *show = user;
    const bool due = progress->seconds > shown + 0.2 || progress->seconds < shown;
    if (show && *show && (progress->epoch_ended || due)) {
        const bool last = progress->epoch_ended && progress->epoch + 1 == progress->epochs;
        char line[160];
        shown = progress->seconds;
        dt_progress_line(progress, line, sizeof line);
        fprintf(stderr, "\r%-78s%s", line, last ? "\r\n" : "");
    }
    return !stop_asked;
}

#endif
