/* The communicator [S10]: every all-reduce against sums that are known in closed form.

   The same cases run on 1..8 threads (./test_comm) and on MPI ranks (mpiexec.mpich -n 3 ./test_comm). A case is a function
   of the communicator that returns an error and its sentence, because cmocka's assertions do not work on other threads. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#ifndef DTRAIN_WITH_THREADS
#define DTRAIN_WITH_THREADS
#endif
#ifndef DTRAIN_LINKED /* the implementation is an object of its own */
#define DTRAIN_IMPLEMENTATION
#endif
#ifdef DTRAIN_HEADER
#include DTRAIN_HEADER
#else
#include "../dtrain.h"
#endif

enum { MOST = 100003 };
static const size_t lengths[] = { 0, 1, 2, 3, 7, 16, 1000, MOST };

static bool available(const dt_comm *comm, dt_algorithm a) {
    bool mpi = strcmp(dt_comm_backend_name(comm), "MPI") == 0;
    if (a == DT_SHARED && dt_comm_hosts(comm) > 1) return false;
    return a != DT_MPI || mpi || dt_comm_size(comm) == 1;
}

/* What rank r gives at position i, as small integers, so that float sums are exact in any order. */
static int64_t given(int rank, size_t i, int round) {
    return (int64_t)((i * 7 + (size_t)rank * 13 + (size_t)round * 5) % 1009) - 500;
}

static int64_t wanted(int p, size_t i, int round, dt_op op) {
    int64_t y = given(0, i, round);
    for (int r = 1; r < p; ++r) {
        int64_t x = given(r, i, round);
        y = op == DT_SUM ? y + x : op == DT_MIN ? (x < y ? x : y) : (x > y ? x : y);
    }
    return y;
}

static void fill(void *buf, dt_type type, size_t n, int rank, int round) {
    for (size_t i = 0; i < n; ++i) {
        int64_t v = given(rank, i, round);
        if (type == DT_F32) ((float *)buf)[i] = (float)v;
        if (type == DT_F64) ((double *)buf)[i] = (double)v;
        if (type == DT_I64) ((int64_t *)buf)[i] = v;
    }
}

static dt_err check(const dt_comm *comm, const void *buf, const dt_allreduce_desc *d, int round) {
    for (size_t i = 0; i < d->n; ++i) {
        int64_t want = wanted(dt_comm_size(comm), i, round, d->op);
        double got = d->type == DT_F32 ? (double)((const float *)buf)[i]
                   : d->type == DT_F64 ? ((const double *)buf)[i] : (double)((const int64_t *)buf)[i];
        if (got == (double)want) continue;
        return dt_fail(DT_EDATA, "%s, %d ranks, n %zu, type %d, op %d: element %zu is %g, wanted %lld on rank %d",
                        dt_algorithm_name(d->algorithm), dt_comm_size(comm), d->n, (int)d->type, (int)d->op, i, got,
                        (long long)want, dt_comm_rank(comm));
    }
    return DT_OK;
}

static dt_err every_algorithm(dt_comm *comm, void *arg) {
    void *buf = malloc(MOST * 8);
    dt_err err = DT_OK;
    (void)arg;
    for (int a = 0; a < DT_ALGORITHMS && !err; ++a)
        for (int type = DT_F32; type <= DT_I64 && !err; ++type)
            for (int op = DT_SUM; op <= DT_MAX && !err; ++op)
                for (size_t l = 0; l < sizeof lengths / sizeof *lengths && !err; ++l) {
                    if (!available(comm, (dt_algorithm)a)) continue;
                    if (lengths[l] == MOST && op != DT_SUM) continue;
                    dt_allreduce_desc d = { buf, lengths[l], (dt_type)type, (dt_op)op, (dt_algorithm)a };
                    fill(buf, d.type, d.n, dt_comm_rank(comm), a);
                    err = dt_allreduce(comm, buf, d.n, d.type, d.op, d.algorithm);
                    if (!err) err = check(comm, buf, &d, a);
                }
    free(buf);
    return err;
}

/* More in flight than there are slots, of all algorithms and lengths mixed, waited for from the last to the first. */
static dt_err many_in_flight(dt_comm *comm, void *arg) {
    enum { MANY = 45 };
    dt_allreduce_desc d[MANY];
    dt_request request[MANY];
    dt_err err = DT_OK;
    (void)arg;
    for (int i = 0; i < MANY && !err; ++i) {
        dt_algorithm a = (dt_algorithm)(i % DT_ALGORITHMS);
        d[i] = (dt_allreduce_desc){ .n = i % 9 == 8 ? MOST : lengths[i % 7], .type = (dt_type)(i % 3), .op = (dt_op)(i / 3 % 3),
                                    .algorithm = available(comm, a) ? a : DT_AUTO };
        d[i].buf = malloc(d[i].n * 8 + 8);
        fill(d[i].buf, d[i].type, d[i].n, dt_comm_rank(comm), i);
        err = dt_allreduce_start(comm, &d[i], &request[i]);
    }
    for (int i = MANY; i-- > 0 && !err;) {
        bool done = false;
        err = dt_allreduce_test(comm, &request[i], &done);
        if (!err && !done) err = dt_allreduce_wait(comm, &request[i]);
        if (!err) err = check(comm, d[i].buf, &d[i], i);
        free(d[i].buf);
    }
    return err;
}

/* Exact sums that wrap, and floats that do not depend on the rank: all ranks must hold the same bits. */
static dt_err same_bits(dt_comm *comm, void *arg) {
    enum { N = 3001 };
    static const dt_algorithm all[] = { DT_NAIVE, DT_TREE, DT_RING, DT_DOUBLING, DT_HALVING, DT_SHARED };
    int p = dt_comm_size(comm), rank = dt_comm_rank(comm);
    float *x = malloc(N * sizeof *x), *everyone = malloc((size_t)p * N * sizeof *x);
    dt_err err = DT_OK;
    (void)arg;
    for (size_t a = 0; a < sizeof all / sizeof *all && !err; ++a) {
        for (int i = 0; i < N; ++i) x[i] = (float)((i * 37 + rank * 101) % 1000) * 0.001f + 1e-3f / (float)(i + 1);
        if (!available(comm, all[a])) continue;
        err = dt_allreduce(comm, x, N, DT_F32, DT_SUM, all[a]);
        if (!err) err = dt_allgather(comm, x, N * sizeof *x, everyone);
        for (int r = 0; r < p && !err; ++r)
            if (memcmp(everyone + (size_t)r * N, x, N * sizeof *x) != 0)
                err = dt_fail(DT_EDATA, "%s, %d ranks: rank %d and rank %d hold different sums", dt_algorithm_name(all[a]), p,
                               rank, r);
    }
    free(x), free(everyone);
    return err;
}

static dt_err messages(dt_comm *comm, void *arg) {
    int p = dt_comm_size(comm), rank = dt_comm_rank(comm), right = (rank + 1) % p, left = (rank + p - 1) % p;
    int64_t mine[3] = { rank, rank + 10, 3 }, got[3] = { -1, -1, -1 }, all[3 * 64];
    (void)arg;
    for (int tag = 0; tag < 5; ++tag) {
        got[0] = -1;
        DT_TRY(dt_sendrecv(comm, mine, sizeof mine, right, got, sizeof got, left, tag));
        if (got[0] != left || got[1] != left + 10) return dt_fail(DT_EDATA, "sendrecv: rank %d got %lld", rank, (long long)got[0]);
    }
    if (p > 1 && rank == 0) DT_TRY(dt_send(comm, mine, sizeof mine, p - 1, 7));
    if (p > 1 && rank == p - 1) {
        DT_TRY(dt_recv(comm, got, sizeof got, 0, 7));
        if (got[1] != 10) return dt_fail(DT_EDATA, "recv: got %lld, wanted 10", (long long)got[1]);
    }
    for (int root = 0; root < p; ++root) {
        int64_t word[2] = { rank == root ? 1000 + root : 0, rank };
        DT_TRY(dt_broadcast(comm, word, sizeof *word, root));
        if (word[0] != 1000 + root || word[1] != rank)
            return dt_fail(DT_EDATA, "broadcast from %d: rank %d has %lld %lld", root, rank, (long long)word[0], (long long)word[1]);
        DT_TRY(dt_barrier(comm));
    }
    DT_TRY(dt_allgather(comm, mine, sizeof mine, all));
    for (int r = 0; r < p; ++r)
        if (all[3 * r] != r || all[3 * r + 1] != r + 10) return dt_fail(DT_EDATA, "allgather: rank %d sees %lld", rank, (long long)all[3 * r]);
    return DT_OK;
}

static dt_err wrong_arguments(dt_comm *comm, void *arg) {
    float x = 1;
    dt_algorithm a = DT_AUTO;
    (void)arg;
    if (dt_send(comm, &x, sizeof x, dt_comm_size(comm), 0) != DT_EARG) return dt_fail(DT_EDATA, "send to nobody was taken");
    if (dt_broadcast(comm, &x, sizeof x, -1) != DT_EARG) return dt_fail(DT_EDATA, "broadcast from nobody was taken");
    if (dt_algorithm_parse("rign", &a) != DT_EARG) return dt_fail(DT_EDATA, "algorithm rign was taken");
    for (int i = 0; i < DT_ALGORITHMS; ++i)
        if (dt_algorithm_parse(dt_algorithm_name((dt_algorithm)i), &a) != DT_OK || (int)a != i)
            return dt_fail(DT_EDATA, "algorithm %d is not parsed back", i);
    return DT_OK;
}

/* What differs is named, on every rank alike. */
static dt_err comparing(dt_comm *comm, void *arg) {
    int p = dt_comm_size(comm), odd = p - 1;
    char want[32];
    (void)arg;
    DT_TRY(dt_comm_same(comm, "the weather", 7));
    if (p == 1) return DT_OK;
    if (dt_comm_same(comm, "the weather", dt_comm_rank(comm) == odd ? 8 : 7) != DT_ECOMM) return dt_fail(DT_EDATA, "a difference was not seen");
    snprintf(want, sizeof want, "rank %d (", odd);
    if (strncmp(dt_error(), want, strlen(want)) != 0 || !strstr(dt_error(), "the weather")) return dt_fail(DT_EDATA, "wanted %s: %s", want, dt_error());
    if (p > 2 && dt_comm_same(comm, "the weather", dt_comm_rank(comm) == 0 ? 8 : 7) != DT_ECOMM) return dt_fail(DT_EDATA, "rank 0's difference was not seen");
    if (p > 2 && strncmp(dt_error(), "rank 0 (", 8) != 0) return dt_fail(DT_EDATA, "rank 0 should be named: %s", dt_error());
    return DT_OK;
}

static dt_err find(const char *text, const char *what, bool wanted_there) {
    return (strstr(text, what) != NULL) == wanted_there ? DT_OK : dt_fail(DT_EDATA, "\"%s\" %s in \"%s\"", what, wanted_there ? "not" : "is", text);
}

static dt_err doctor(dt_comm *comm, void *arg) {
    int p = dt_comm_size(comm);
    bool last = dt_comm_rank(comm) == p - 1;
    char text[2000];
    dt_doctor_desc d = { .program = "./x", .lane_groups = 1, .settings = "--epochs 2\n--quiet", .data_name = "mnist", .data = 6 };
    (void)arg;
    DT_TRY(dt_comm_doctor(comm, &d, text, sizeof text));
    DT_TRY(find(text, "error", false));
    DT_TRY(find(text, "1 group of 16 images", p > 1));
    if (dt_comm_hosts(comm) == 1) DT_TRY(find(text, "more ranks do not make it faster", p > dt_cores()));
    if (p == 1) return DT_OK;
    static const struct { const char *other, *says; } said[] = {
        { "--epochs 2\n--profile\n--quiet", " was started with --profile, rank 0 without it" },
        { "--quiet", " was started without --epochs 2, rank 0 with it" },
        { "--epochs 22\n--quiet", " was started with --epochs 22, rank 0 with --epochs 2;" },
        { "--quiet\n--epochs 2", " was started with another command line than rank 0" },
        { NULL, " was started without --epochs 2, rank 0 with it" } };
    for (size_t i = 0; i < sizeof said / sizeof *said; ++i) {
        d.settings = last ? said[i].other : "--epochs 2\n--quiet";
        if (dt_comm_doctor(comm, &d, text, sizeof text) != DT_ECOMM) return dt_fail(DT_EDATA, "other settings were not seen");
        DT_TRY(find(text, "error: rank", true));
        DT_TRY(find(text, said[i].says, true));
    }
    d.settings = "x";
    if (last) fesetround(FE_UPWARD); /* as a build with other flags would, it then comes to other last digits */
    const dt_err seen = dt_comm_doctor(comm, &d, text, sizeof text);
    fesetenv(FE_DFL_ENV);
    if (seen != DT_ECOMM) return dt_fail(DT_EDATA, "other arithmetic was not seen");
    DT_TRY(find(text, "computes other last digits than the others", true));
    d.data = last ? 0 : 6;
    if (dt_comm_doctor(comm, &d, text, sizeof text) != DT_ECOMM) return dt_fail(DT_EDATA, "missing data were not seen");
    return find(text, "does not have the data (mnist)", true);
}

static dt_err recording(dt_comm *comm, void *arg) {
    const char *path = "test_comm_trace.json";
    dt_comm_cost since = dt_comm_times(comm);
    dt_profile each[64];
    char line[300];
    int lines = 0, named = 0;
    (void)arg;
    DT_TRY(dt_trace_start(comm, 1000));
    double start = dt_now();
    while (dt_now() < start + 0.002) { }
    for (int i = 0; i < 700; ++i) dt_trace(comm, "ray \"x\"", start, dt_now());
    DT_TRY(dt_barrier(comm));
    DT_TRY(dt_comm_profile(comm, &since, dt_now() - start, each));
    for (int r = 0; r < dt_comm_size(comm); ++r)
        if (each[r].compute < 0.0 || each[r].seconds < 0.002 || each[r].compute + each[r].wait + each[r].reduce < 0.99 * each[r].seconds)
            return dt_fail(DT_EDATA, "profile of rank %d: %g s = %g + %g + %g", r, each[r].seconds, each[r].compute, each[r].wait, each[r].reduce);
    DT_TRY(dt_trace_write(comm, path));
    if (dt_trace_write(comm, "/no/such/place") != DT_EIO) return dt_fail(DT_EDATA, "an impossible file was written");
    if (dt_comm_rank(comm) != 0) return DT_OK;
    FILE *file = fopen(path, "r");
    if (!file) return dt_fail(DT_EDATA, "no trace");
    while (fgets(line, sizeof line, file)) ++lines, named += strstr(line, "\"ray \\\"x\\\"\"") != NULL;
    fclose(file);
    if (named == 700 * dt_comm_size(comm) && lines > named) return remove(path), DT_OK;
    return dt_fail(DT_EDATA, "the trace has %d lines, %d of ours", lines, named);
}

static const struct { const char *name; dt_err (*fn)(dt_comm *, void *); } cases[] = {
    { "every algorithm, type, operation and length", every_algorithm },
    { "many in flight",                              many_in_flight },
    { "the same bits on every rank",                 same_bits },
    { "messages, broadcast, gather, barrier",        messages },
    { "wrong arguments",                             wrong_arguments },
    { "what differs is named",                       comparing },
    { "the doctor",                                  doctor },
    { "profile and trace",                           recording },
};
enum { CASES = sizeof cases / sizeof *cases };

static void on_threads(void **state) {
    const char *only = getenv("TEST_RANKS");
    for (int p = only ? atoi(only) : 1; p <= (only ? atoi(only) : 8); ++p)
        for (int i = 0; i < CASES; ++i)
            if (dt_run_ranks(p, cases[i].fn, NULL) != DT_OK) fail_msg("%d threads, %s: %s", p, cases[i].name, dt_error());
    (void)state;
}

static dt_err rank_two_fails(dt_comm *comm, void *arg) {
    (void)arg;
    if (dt_comm_rank(comm) == 2) return dt_fail(DT_EDATA, "no bananas");
    return dt_barrier(comm);
}

/* A rank that fails must not leave the others waiting, and its own error comes back. */
static void a_failing_thread(void **state) {
    (void)state;
    assert_int_equal(dt_run_ranks(4, rank_two_fails, NULL), DT_EDATA);
    assert_string_equal(dt_error(), "rank 2: no bananas");
    assert_int_equal(dt_run_ranks(0, rank_two_fails, NULL), DT_EARG);
}

static atomic_int release_them;

static dt_err rank_two_hangs(dt_comm *comm, void *arg) {
    (void)arg;
    dt_comm_set_patience(comm, 0.3);
    for (int step = 0; step < 20; ++step) {
        dt_comm_progress(comm, (uint64_t)step, "dancing");
        while (dt_comm_rank(comm) == 2 && step == 7 && !atomic_load(&release_them)) sched_yield();
        DT_TRY(dt_barrier(comm));
    }
    return DT_OK;
}

static dt_err rank_one_leaves(dt_comm *comm, void *arg) {
    (void)arg;
    dt_comm_set_patience(comm, 0.3);
    dt_comm_progress(comm, 3, NULL);
    return dt_comm_rank(comm) == 1 ? DT_OK : dt_barrier(comm);
}

static dt_err ranks_cross(dt_comm *comm, void *arg) {
    char x = 0;
    (void)arg;
    dt_comm_set_patience(comm, 0.3);
    return dt_recv(comm, &x, 1, 1 - dt_comm_rank(comm), 0);
}

static dt_err rank_one_is_slow(dt_comm *comm, void *arg) {
    (void)arg;
    dt_comm_set_patience(comm, 0.4);
    for (int i = 0; i < 3; ++i) {
        if (dt_comm_rank(comm) == 1) dt_comm_progress(comm, (uint64_t)i, NULL), nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
        DT_TRY(dt_barrier(comm));
    }
    dt_comm_phase(comm, "loading");
    if (dt_comm_rank(comm) == 1) nanosleep(&(struct timespec){ .tv_nsec = 900000000 }, NULL);
    return dt_barrier(comm);
}

/* What a thread that hangs may still use is never freed, and so said in [E2.5]: LeakSanitizer need not report that. */
#if defined(__SANITIZE_ADDRESS__)
void __lsan_disable(void);
void __lsan_enable(void);
#else
static void __lsan_disable(void) { }
static void __lsan_enable(void) { }
#endif

static void threads_that_hang(void **state) {
    double start = dt_now();
    (void)state;
    __lsan_disable();
    const dt_err hangs = dt_run_ranks(4, rank_two_hangs, NULL);
    __lsan_enable();
    assert_int_equal(hangs, DT_ECOMM);
    atomic_store(&release_them, 1);
    if (!strstr(dt_error(), "rank 2 (") || !strstr(dt_error(), "makes no progress, in step 7 (dancing)")) fail_msg("%s", dt_error());
    assert_int_equal(dt_run_ranks(3, rank_one_leaves, NULL), DT_ECOMM);
    if (!strstr(dt_error(), "rank 1 (") || !strstr(dt_error(), "has left")) fail_msg("%s", dt_error());
    assert_int_equal(dt_run_ranks(2, ranks_cross, NULL), DT_ECOMM);
    if (!strstr(dt_error(), "wait for each other")) fail_msg("%s", dt_error());
    if (dt_now() - start > 10.0) fail_msg("it took %g s", dt_now() - start);
    if (dt_run_ranks(3, rank_one_is_slow, NULL) != DT_OK) fail_msg("%s", dt_error());
}

static void alone(void **state) {
    dt_comm *comm = dt_comm_alone();
    (void)state;
    assert_non_null(comm);
    for (int i = 0; i < CASES; ++i)
        if (cases[i].fn(comm, NULL) != DT_OK) fail_msg("%s: %s", cases[i].name, dt_error());
    assert_string_equal(dt_comm_backend_name(comm), "alone");
    dt_comm_free(comm);
}

/* Under mpiexec: rank 0 says what was run, every rank says what went wrong. */
static int on_mpi(dt_comm *comm) {
    for (int i = 0; i < CASES; ++i) {
        if (cases[i].fn(comm, NULL) != DT_OK) {
            fprintf(stderr, "[rank %d] %s: %s\n", dt_comm_rank(comm), cases[i].name, dt_error());
            dt_comm_abort(comm, 1);
            return 1;
        }
        if (dt_comm_rank(comm) == 0) printf("ok  %d MPI ranks: %s\n", dt_comm_size(comm), cases[i].name);
    }
    dt_comm_free(comm);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(alone), cmocka_unit_test(on_threads), cmocka_unit_test(a_failing_thread),
                                        cmocka_unit_test(threads_that_hang) };
    (void)argc, (void)argv;
    if (getenv("PMI_SIZE")) {                                   /* mpiexec started us */
        dt_comm *comm = dt_comm_world(&argc, &argv);
        if (!comm) return fprintf(stderr, "%s\n", dt_error()), 1;
        return on_mpi(comm);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
