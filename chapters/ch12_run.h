// Chapter 12, what one run tells: its line, its rows for the CSV files, the table of --profile.
#ifndef CH12_RUN_H
#define CH12_RUN_H

#include "ch12_settings.h"
#include "ranks.h"

// A run's numbers: what training told, the score on the test images, and a hash of the parameters.
typedef struct run {
    dt_train_result train;
    dt_score test;
    int workers;
    uint64_t hash;
} run;

typedef struct watch {
    dt_comm *comm;
    const settings *s;
    bool show, complained;
    double seconds;
    dt_comm_cost cost;
} watch;

// The table of --profile, from all ranks, at the end of an epoch. What a rank waits, another one
// keeps it waiting.
static void print_profile(watch *w, const dt_progress *p) {
    dt_profile each[1024];
    if (dt_comm_size(w->comm) > 1024 ||
        dt_comm_profile(w->comm, &w->cost, p->seconds - w->seconds, each) != DT_OK)
        return;
    for (int r = 0; r < dt_comm_size(w->comm) && dt_comm_rank(w->comm) == 0; ++r) {
        const dt_profile *x = &each[r];
        if (r == 0)
            printf("epoch %-4d rank  seconds  computing  waiting   adding  MB sent\n",
                   p->epoch + 1);
        printf("           %4d %8.3f %9.1f%% %7.1f%% %7.1f%% %8.2f\n", r, x->seconds,
               100 * x->compute / x->seconds, 100 * x->wait / x->seconds,
               100 * x->reduce / x->seconds, 1e-6 * (double)x->bytes);
    }
    w->cost = dt_comm_times(w->comm);
    w->seconds = p->seconds;
}

static bool after_step(const dt_progress *p, void *user) {
    watch *w = user;
    if (w->s->profile && p->epoch_ended && !w->s->hogwild) print_profile(w, p);
    if (p->complaint && !w->complained) fprintf(stderr, "%s; training goes on\n", p->complaint);
    w->complained = w->complained || p->complaint;
    return show_progress(p, &w->show);
}

// ---- Files and the line that is printed.

static const char runs_header[] =
    "method,workers,cores,dataset,epochs,batch,seconds,images_per_second,train_loss,test_loss,"
    "test_accuracy,weights_hash";
static const char epochs_header[] = "method,workers,cores,dataset,epoch,seconds,images_per_second";

// Nobody trains for an hour to hear that there is no such folder.
static dt_err check_outputs(const settings *s) {
    if (s->csv) DT_TRY(dt_csv_check(s->csv, runs_header));
    if (s->epoch_csv) DT_TRY(dt_csv_check(s->epoch_csv, epochs_header));
    if (s->save) DT_TRY(dt_check_writable(s->save));
    if (s->checkpoint) DT_TRY(dt_check_writable(s->checkpoint));
    return s->trace ? dt_check_writable(s->trace) : DT_OK;
}

static dt_err write_rows(const settings *s, const char *data, const run *r,
                         double images_per_second) {
    if (s->csv)
        DT_TRY(dt_csv_append(s->csv, runs_header,
                             "%s,%d,%d,%s,%d,%d,%.4f,%.1f,%.6f,%.6f,%.4f,%016llx", s->method,
                             r->workers, dt_cores(), data, r->train.epochs, s->batch,
                             r->train.seconds, images_per_second, dt_score_loss(&r->train.score),
                             dt_score_loss(&r->test), dt_score_accuracy(&r->test),
                             (unsigned long long)r->hash));
    for (int e = 0; s->epoch_csv && e < r->train.epochs && e < DT_MAX_EPOCHS_KEPT; ++e)
        DT_TRY(
            dt_csv_append(s->epoch_csv, epochs_header, "%s,%d,%d,%s,%d,%.4f,%.1f", s->method,
                          r->workers, dt_cores(), data, e + 1, r->train.epoch_seconds[e],
                          (double)r->train.samples / r->train.epochs / r->train.epoch_seconds[e]));
    return DT_OK;
}

static void print_run(const settings *s, const run *r, double images_per_second) {
    if (s->resume) {
        printf("resumed  after %llu steps, from %s", (unsigned long long)r->train.resumed,
               s->resume);
        if (r->train.resumed_epochs != s->epochs)
            printf(", whose run was to have %d epochs; this one has %d", r->train.resumed_epochs,
                   s->epochs);
        printf("\n");
    }
    printf("%-8s %d worker%s  %d epoch%s  %.2f s  %.0f images/s  train loss %.4f  test loss %.4f  "
           "accuracy %.4f  weights %016llx%s\n",
           s->method, r->workers, r->workers == 1 ? "" : "s", r->train.epochs,
           r->train.epochs == 1 ? "" : "s", r->train.seconds, images_per_second,
           dt_score_loss(&r->train.score), dt_score_loss(&r->test), dt_score_accuracy(&r->test),
           (unsigned long long)r->hash, r->train.stopped ? "  (stopped early)" : "");
}

static dt_err write_all(const settings *s, const char *data, const dt_net *net, const run *r) {
    const double images_per_second =
        r->train.seconds > 0.0 ? (double)r->train.samples / r->train.seconds : 0.0;
    DT_TRY(write_rows(s, data, r, images_per_second));
    if (s->save) DT_TRY(dt_save(net, s->save));
    if (s->checkpoint && *r->train.complaint) // a quiet run, too, tells what it has not done
        fprintf(stderr, "%s; training went on\n", r->train.complaint);
    if (!s->quiet) print_run(s, r, images_per_second);
    return DT_OK;
}

#endif
