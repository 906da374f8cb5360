/* A training run in which one rank fails in a way that the command line says; test_fault.sh runs it and judges.

     fault METHOD HOW VICTIM [SECONDS]      METHOD sync or psgd; HOW see below; VICTIM the rank; SECONDS of patience */
#ifndef DTRAIN_LINKED /* the implementation is an object of its own */
#define DTRAIN_IMPLEMENTATION
#endif
#ifdef DTRAIN_HEADER
#include DTRAIN_HEADER
#else
#include "../dtrain.h"
#endif
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *how;
static int victim;

static void die(dt_comm *comm) {
    char line[640];
    if (dt_comm_may_speak(comm)) {
        dt_comm_complaint(comm, line, sizeof line);
        fprintf(stderr, "%s\n", line);
        fflush(stderr);
    }
    dt_comm_abort(comm, 1);
    exit(1);
}

static void check(dt_comm *comm, dt_err error) {
    if (error != DT_OK) die(comm);
}

static bool is(const dt_comm *comm, const char *what) { return dt_comm_rank(comm) == victim && strcmp(how, what) == 0; }

/* MPI_Finalize calls this. */
static int on_end(MPI_Comm self, int key, void *value, void *extra) {
    (void)self, (void)key, (void)value, (void)extra;
    if (strcmp(how, "end-kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(how, "end-stop") == 0) kill(getpid(), SIGSTOP);
    if (strcmp(how, "end-loop") == 0) for (volatile unsigned i = 0;; ++i) { }
    return MPI_SUCCESS;
}

/* And here it is killed while it calls the usher: at the second try, which is after it has forked one, if nobody has before. */
int connect(int line, const struct sockaddr *address, socklen_t size) {
    static int tries;
    const char *rank = getenv("PMI_RANK");
    if (how && strcmp(how, "call-kill") == 0 && rank && atoi(rank) == victim && ++tries == 2) kill(getpid(), SIGKILL);
    return (int)syscall(SYS_connect, line, address, size);
}

typedef struct run { dt_comm *comm; dt_net *net; } run;

/* MPI's profiling interface lets a program stand before its functions: here the victim fails in MPI_Init. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const char *rank = getenv("PMI_RANK");
    const bool here = rank && atoi(rank) == victim;
    if (here && strcmp(how, "init-kill") == 0) kill(getpid(), SIGKILL);
    if (here && strcmp(how, "init-guardian") == 0) kill(getppid(), SIGKILL), sleep(60);
    if (here && strcmp(how, "init-stop") == 0) kill(getpid(), SIGSTOP);
    if (here && strcmp(how, "init-exit") == 0) exit(3);
    return PMPI_Init_thread(argc, argv, required, provided);
}

/* In the fifth step of the second epoch. */
static bool on_step(const dt_progress *p, void *user) {
    run *r = user;
    dt_comm_progress(r->comm, (uint64_t)p->epoch * p->steps + p->step, "training");
    if (p->epoch != 1 || p->step != 5) return true;
    if (strcmp(how, "ever") == 0 && dt_comm_rank(r->comm) == 0) printf("training\n"), fflush(stdout);
    if (is(r->comm, "kill")) kill(getpid(), SIGKILL);
    if (is(r->comm, "segv")) kill(getpid(), SIGSEGV);
    if (is(r->comm, "exit")) exit(0);
    if (is(r->comm, "_exit")) _exit(0);
    if (is(r->comm, "stop")) kill(getpid(), SIGSTOP);
    if (is(r->comm, "loop")) for (volatile unsigned i = 0;; ++i) { }
    if (is(r->comm, "nan")) dt_net_values(r->net)[3] = NAN;
    if (is(r->comm, "flip")) dt_net_values(r->net)[dt_net_count(r->net) / 2] += 1.0f;
    if (is(r->comm, "slow")) nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    return true;
}

int main(int argc, char **argv) {
    if (argc > 3) how = argv[2], victim = atoi(argv[3]);
    dt_comm *comm = dt_comm_world(&argc, &argv);
    if (!comm) return fprintf(stderr, "%s\n", dt_error()), 1;
    if (argc < 4) return fprintf(stderr, "fault METHOD HOW VICTIM [SECONDS]\n"), 2;
    if (argc > 4) dt_comm_set_patience(comm, atof(argv[4]));

    int key;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_end, &key, NULL);
    if (dt_comm_rank(comm) == victim) MPI_Comm_set_attr(MPI_COMM_SELF, key, &key);

    dt_dataset data;
    dt_comm_phase(comm, "loading data");
    if (is(comm, "open")) check(comm, dt_idx_load(&data, "no-such-images", "no-such-labels", 10));
    check(comm, dt_dataset_synthetic(&data, 1024, is(comm, "data") ? 2 : 1));
    if (is(comm, "other")) { /* another program, whose first message is longer, or shorter where it is rank 0 */
        static char bytes[4096];
        check(comm, dt_broadcast(comm, bytes, victim ? 4 : 4096, 0));
        check(comm, dt_barrier(comm));
    }
    check(comm, dt_comm_same(comm, "the data", data.hash));
    check(comm, dt_comm_same(comm, "the settings", is(comm, "settings") ? 1 : 2));
    if (is(comm, "nap")) sleep(2);

    dt_net *net = dt_net_new(1, 28, 28);
    dt_conv2d(net, "conv1", &(dt_conv2d_desc){ .out = 4, .kernel = 5 });
    dt_maxpool2d(net, 4);
    dt_relu(net);
    dt_linear(net, "fc1", 10);
    check(comm, dt_net_build(net, &(dt_build_desc){ .batch = 64, .seed = is(comm, "weights") ? 2 : 1 }));
    check(comm, dt_comm_same(comm, "the starting weights", dt_net_hash(net)));
    dt_optimizer *opt = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f });

    run r = { comm, net };
    dt_train_result result;
    const int epochs = strcmp(how, "ever") == 0 ? 1000000 : 20;
    dt_train_desc desc = { .data = &data, .epochs = epochs, .batch = 64, .seed = 1, .check_every = 8, .on_step = on_step, .user = &r };
    check(comm, strcmp(argv[1], "sync") == 0 ? dt_train_sync(net, opt, comm, &desc, &result) : dt_train_psgd(net, opt, comm, &desc, &result));

    dt_comm_phase(comm, "evaluating");
    dt_score score;
    if (is(comm, "leave")) { dt_comm_free(comm); return 0; }
    check(comm, dt_evaluate(net, &data, comm, &score));
    if (dt_comm_rank(comm) == 0) printf("%d ranks, accuracy %.4f\n", dt_comm_size(comm), dt_score_accuracy(&score));
    dt_optimizer_free(opt);
    dt_net_free(net);
    dt_dataset_free(&data);
    dt_comm_free(comm);
    return 0;
}
