// Chapter 7. All-reduce                                 uses [S10.1] [S10.2] [S10.3] [E6] [E8]
//
// You will learn   what a rank is; how a sum gets onto every rank, in four ways; how to say which
//                  way is fastest, and when
// New since ch06   about 120 lines: ranks, messages, four all-reduces, a cost model and its fit
// Run              make ch07 && mpiexec -n 3 ./ch07   (beside Open MPI: mpiexec.mpich)
// Check            mpiexec -n 3 ./ch07 --quick
//
//| rank 1 received [1 -1] from rank 0
//| rank 0 has 0
//| rank 1 has 0
//| rank 2 has 0
//| broadcast    from every root, as the header's
//| naive        the header's bits at 7 lengths
//| tree         the header's bits at 7 lengths
//| ring         the header's bits at 7 lengths
//| doubling     the header's bits at 7 lengths
//~ start-up <num> us a message, <num> ns a byte sent, <num> ns a byte added; half of ...

#include "ch07_report.h"

// ## 7.1 Ranks and messages
//
// `mpiexec -n 3 ./ch07` starts this program three times, on this machine or on several. **MPI** is
// the standard by which such processes send each other messages; mpiexec starts them. Nothing is
// shared: each process has its own memory and knows two numbers, its rank (0, 1, 2) and the size
// (3). All they can do with each other is send and receive. The smallest example: rank 0 sends the
// vector [1, -1], rank 1 receives it. Both must call, or one waits for ever. The call is
// dt_send(comm, memory, bytes, to whom, tag) and dt_recv(comm, memory, bytes, from whom, tag),
// where comm stands for all ranks, and the tag is a number by which messages are told apart. DT_TRY
// hands an error on to the caller.
//
// Standard output belongs to rank 0, so rank 1 tells what it got by sending it back.

// [region: sendrecv]
static dt_err send_and_receive(dt_comm *comm) {
    const int rank = dt_comm_rank(comm);
    float x[2] = { 0.0f, 0.0f };
    if (dt_comm_size(comm) < 2) {
        printf("one rank has nobody to talk to: mpiexec -n 3 ./ch07\n");
        return DT_OK;
    }
    if (rank == 0) {
        x[0] = 1.0f, x[1] = -1.0f;
        DT_TRY(dt_send(comm, x, sizeof x, 1, 0));
        DT_TRY(dt_recv(comm, x, sizeof x, 1, 1));
        printf("rank 1 received [%g %g] from rank 0\n", (double)x[0], (double)x[1]);
    } else if (rank == 1) {
        DT_TRY(dt_recv(comm, x, sizeof x, 0, 0));
        DT_TRY(dt_send(comm, x, sizeof x, 0, 1));
    }
    return DT_OK;
}
// [end]

// *Why all-reduce?* Each rank computes the gradient of its own images (0.7), and a step needs the
// sum of all of them: the same sum, on every rank, so that all take the same step. One gradient of
// this net is 9 840 numbers, of a large one billions, and it happens in every step: how the sum
// gets onto everybody decides whether ranks pay at all. There is more than one way, and the best
// depends on how many ranks and how many numbers there are.
//
// An all-reduce leaves the sum of everybody's value on everybody. Ranks 0, 1 and 2 bring 1, 2 and
// -3 (further ranks begin again with 1), and of three ranks each must end with 0.

// [region: three]
static dt_err sum_of_three(dt_comm *comm) {
    const float brings[3] = { 1.0f, 2.0f, -3.0f };
    float x = brings[dt_comm_rank(comm) % 3], all[1024];
    if (dt_comm_size(comm) > 1024) return DT_OK;
    DT_TRY(dt_allreduce(comm, &x, 1, DT_F32, DT_SUM, DT_AUTO));
    DT_TRY(dt_allgather(comm, &x, sizeof x, all)); // so that rank 0 can print for all, in order
    for (int r = 0; r < dt_comm_size(comm) && dt_comm_rank(comm) == 0; ++r)
        printf("rank %d has %g\n", r, (double)all[r]);
    return DT_OK;
}
// [end]

// ## 7.2 Broadcast
//
// One rank, the *root*, knows something, all must. With p ranks (the P of 0.7), telling the others
// one by one takes p-1 rounds. But who has been told can tell:
//
//     round 0   0 -> 1                          2 ranks know
//     round 1   0 -> 2   1 -> 3                 4 know
//     round 2   0 -> 4   1 -> 5   2 -> 6  ...   8 know
//
// Each round doubles those who know, so there are lg p rounds, the logarithm of p to base 2,
// rounded up. Ranks are counted from the root, so that any rank can be it.

// [region: broadcast]
static dt_err broadcast_by_hand(dt_comm *comm, void *buf, size_t bytes, int root) {
    const int p = dt_comm_size(comm), me = (dt_comm_rank(comm) - root + p) % p;
    for (int know = 1; know < p; know *= 2) {
        if (me < know && me + know < p)
            DT_TRY(dt_send(comm, buf, bytes, (me + know + root) % p, 2));
        if (me >= know && me < 2 * know)
            DT_TRY(dt_recv(comm, buf, bytes, (me - know + root) % p, 2));
    }
    return DT_OK;
}
// [end]

// ## 7.3 Four all-reduces
//
// Each takes a vector x of n floats and a scratch vector of n floats in which arriving numbers wait
// to be added.

static void add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

// **Naive.** Rank 0 gathers, adds and gives back. Everything passes through one rank:
//
//     0 <- 1   0 <- 2   0 <- 3   0 -> 1   0 -> 2   0 -> 3     2(p-1) messages, one after the other

// [region: naive]
static dt_err naive(dt_comm *comm, float *x, size_t n, float *scratch) {
    const int p = dt_comm_size(comm);
    if (dt_comm_rank(comm) > 0) {
        DT_TRY(dt_send(comm, x, n * sizeof *x, 0, 3));
        return dt_recv(comm, x, n * sizeof *x, 0, 3);
    }
    for (int r = 1; r < p; ++r) {
        DT_TRY(dt_recv(comm, scratch, n * sizeof *x, r, 3));
        add(x, scratch, n);
    }
    for (int r = 1; r < p; ++r) DT_TRY(dt_send(comm, x, n * sizeof *x, r, 3));
    return DT_OK;
}
// [end]

// **Tree.** Sums flow to rank 0 along the branches of the broadcast, backwards; then the broadcast.
// Below, the rank over `<` sends its sum to the rank over `|` on its left, and is done.
//
//     0   1   2   3   4   5   6   7
//     |--<    |--<    |--<    |--<      distance 1
//     |------<        |------<          distance 2
//     |--------------<                  distance 4           2 lg p messages, one after the other

// [region: tree]
static dt_err tree(dt_comm *comm, float *x, size_t n, float *scratch) {
    const int p = dt_comm_size(comm), rank = dt_comm_rank(comm);
    for (int distance = 1; distance < p; distance *= 2) {
        if (rank & distance) {
            DT_TRY(dt_send(comm, x, n * sizeof *x, rank - distance, 4));
            break;
        }
        if (rank + distance >= p) continue;
        DT_TRY(dt_recv(comm, scratch, n * sizeof *x, rank + distance, 4));
        add(x, scratch, n);
    }
    return broadcast_by_hand(comm, x, n * sizeof *x, 0);
}
// [end]

// **Ring.** The vector is cut into p blocks; in each step every rank passes one block to its right.
// In the first p-1 steps the receiver adds; then each rank has one complete block, and the complete
// blocks go round once more. Follow b0 in the picture: rank 1 adds its own b0 to rank 0's and
// passes the sum on, rank 2 adds, rank 3 adds, and has the sum of all four. Every link is busy all
// the time, and each rank sends only 2(p-1)/p of the vector, however many ranks there are.
//
//     step 0    0 -b0-> 1 -b1-> 2 -b2-> 3 -b3-> 0
//     step 1    0 -b3-> 1 -b0-> 2 -b1-> 3 -b2-> 0              2(p-1) messages, each of n/p

// [region: ring]
static size_t cut(size_t n, int p, int i) {
    return n / (size_t)p * (size_t)i + n % (size_t)p * (size_t)i / (size_t)p;
}

static dt_err ring(dt_comm *comm, float *x, size_t n, float *scratch) {
    const int p = dt_comm_size(comm), rank = dt_comm_rank(comm), right = (rank + 1) % p,
              left = (rank + p - 1) % p;
    for (int step = 0; step < 2 * (p - 1); ++step) {
        const int give = ((rank - step) % p + p) % p, take = (give + p - 1) % p;
        const size_t take_n = cut(n, p, take + 1) - cut(n, p, take);
        float *into = step < p - 1 ? scratch : x + cut(n, p, take);
        DT_TRY(dt_sendrecv(comm, x + cut(n, p, give),
                           (cut(n, p, give + 1) - cut(n, p, give)) * sizeof *x, right, into,
                           take_n * sizeof *x, left, 5));
        if (step < p - 1) add(x + cut(n, p, take), scratch, take_n);
    }
    return DT_OK;
}
// [end]

// *Why sendrecv?* A send may wait until the other side receives: MPI promises no more. If all ranks
// of a ring first send and then receive, all wait in their send, for ever: a **deadlock**. It may
// even work for years, with messages so short that they are put aside, and stop with longer ones.
// dt_sendrecv does both at once, and needs no order.

// **Recursive doubling.** Everybody exchanges the whole vector with the rank at distance 1, then 2,
// then 4: after each round twice as many values are in every sum. Where p is no power of two, the
// extra ranks first give theirs to others.
//
//     0 <-> 1   2 <-> 3      then     0 <-> 2   1 <-> 3                 lg p messages, each of n

// [region: doubling]
static dt_err doubling(dt_comm *comm, float *x, size_t n, float *scratch) {
    const int p = dt_comm_size(comm), rank = dt_comm_rank(comm);
    int q = 1;
    while (2 * q <= p) q *= 2;
    if (rank >= q) {
        DT_TRY(dt_send(comm, x, n * sizeof *x, rank - q, 6));
        return dt_recv(comm, x, n * sizeof *x, rank - q, 6);
    }
    if (rank + q < p) {
        DT_TRY(dt_recv(comm, scratch, n * sizeof *x, rank + q, 6));
        add(x, scratch, n);
    }
    for (int distance = 1; distance < q; distance *= 2) {
        DT_TRY(dt_sendrecv(comm, x, n * sizeof *x, rank ^ distance, scratch, n * sizeof *x,
                           rank ^ distance, 6));
        add(x, scratch, n);
    }
    return rank + q < p ? dt_send(comm, x, n * sizeof *x, rank + q, 6) : DT_OK;
}
// [end]

// **Halving.** Doubling sends the whole vector lg p times. Its twin first shares the work: partners
// at distance p/2 each take one half of the vector to sum up, and send the other half; then
// partners at p/4 do the same with that half, and so on. After lg p rounds every rank has one p-th,
// complete, as in the ring, but in fewer messages. The same way back, and everybody has everything.
//
//     4 ranks, blocks a b c d        rank 0     rank 1     rank 2     rank 3
//     partners 0-2, 1-3   sums of    a b        a b        c d        c d         n/2 sent
//     partners 0-1, 2-3   sums of    a          b          c          d           n/4 sent
//     and back            has        a b        a b        c d        c d         n/4 sent
//                         has        a b c d    a b c d    a b c d    a b c d     n/2 sent
//
// 2 lg p messages, and 2(p-1)/p of the vector: the ring's bytes at the tree's number of messages.
// It is in the table below by the header's hand (DT_HALVING); exercise 7.7.2 writes it by yours.

// Each is now held against the header's, which is written another way (an algorithm there is a list
// of steps [S10.3]), with awkward lengths: none, one, fewer than ranks. Floats are added in the
// same order, so every bit must be the same.

static CHAPTER_NORETURN void mismatch(dt_comm *comm, const char *what) {
    if (dt_comm_rank(comm) == 0)
        fprintf(stderr, "%s by hand gives other bits than the header's on %d ranks\n", what,
                dt_comm_size(comm));
    dt_comm_free(comm);
    exit(1);
}

// [region: check]
typedef dt_err allreduce(dt_comm *comm, float *x, size_t n, float *scratch);
enum { LONGEST = 10000 };

static dt_err same_as_header(dt_comm *comm, allreduce *by_hand, dt_algorithm algorithm) {
    static const size_t lengths[7] = { 0, 1, 2, 3, 5, 1000, LONGEST };
    static float x[LONGEST], y[LONGEST], scratch[LONGEST];
    int64_t wrong = 0;
    for (int k = 0; k < 7; ++k) {
        for (size_t i = 0; i < lengths[k]; ++i)
            x[i] = y[i] = dt_uniform(dt_philox(7, DT_RNG_TEST, (uint32_t)k,
                                               (uint32_t)dt_comm_rank(comm), (uint32_t)i)
                                         .v[0]) -
                          0.5f;
        DT_TRY(by_hand(comm, x, lengths[k], scratch));
        DT_TRY(dt_allreduce(comm, y, lengths[k], DT_F32, DT_SUM, algorithm));
        wrong += memcmp(x, y, lengths[k] * sizeof *x) != 0;
    }
    DT_TRY(dt_allreduce(comm, &wrong, 1, DT_I64, DT_SUM, DT_AUTO));
    if (wrong) mismatch(comm, dt_algorithm_name(algorithm));
    if (dt_comm_rank(comm) == 0)
        printf("%-12s the header's bits at 7 lengths\n", dt_algorithm_name(algorithm));
    return DT_OK;
}

static dt_err check_broadcast(dt_comm *comm) {
    int64_t wrong = 0;
    for (int root = 0; root < dt_comm_size(comm); ++root) {
        int mine = dt_comm_rank(comm) == root ? 100 + root : -1, theirs = mine;
        DT_TRY(broadcast_by_hand(comm, &mine, sizeof mine, root));
        DT_TRY(dt_broadcast(comm, &theirs, sizeof theirs, root));
        wrong += mine != 100 + root || mine != theirs;
    }
    DT_TRY(dt_allreduce(comm, &wrong, 1, DT_I64, DT_SUM, DT_AUTO));
    if (wrong) mismatch(comm, "broadcast");
    if (dt_comm_rank(comm) == 0) printf("%-12s from every root, as the header's\n", "broadcast");
    return DT_OK;
}
// [end]

// ## 7.4 How long they take
//
// Seven ways, from 4 bytes to 16 MB. A time is the slowest rank's; it is taken over several calls,
// several times; the table has the medians. Beside the five of 7.3 there are two that the library
// does not make of messages: MPI's own (mpi), and one for ranks of one machine, through memory that
// all of them see (shared) [S10.2].

// [region: time]
static dt_err time_allreduce(dt_comm *comm, dt_algorithm way, float *x, size_t n, int rounds,
                             trials *t) {
    const int calls = n <= 1024 ? 40 : n <= 65536 ? 8 : 1;
    double seconds[ROUNDS];
    // the first call makes buffers: not counted
    DT_TRY(dt_allreduce(comm, x, n, DT_F32, DT_SUM, way));
    for (int r = 0; r < rounds; ++r) {
        DT_TRY(dt_barrier(comm));
        const double start = dt_now();
        for (int i = 0; i < calls; ++i) DT_TRY(dt_allreduce(comm, x, n, DT_F32, DT_SUM, way));
        seconds[r] = (dt_now() - start) / calls;
        DT_TRY(dt_allreduce(comm, &seconds[r], 1, DT_F64, DT_MAX, DT_AUTO));
    }
    *t = trials_of(seconds, (size_t)rounds);
    return DT_OK;
}
// [end]

// ## 7.5 A model with three numbers
//
// A message of n bytes costs a start-up time and a time per byte: alpha + n beta. Adding n bytes
// costs n gamma. Counting the messages along the slowest rank's way gives each algorithm's time as
// A alpha + B beta + C gamma, with the A, B, C below (Thakur, Rabenseifner, Gropp 2005): how many
// messages, bytes sent, bytes added. `up` and `down` are lg p rounded up and down. All measurements
// together must then be explained by three numbers: least squares over relative errors, so that a
// microsecond at 4 bytes weighs like a millisecond at 16 MB. Adding alone is measured as well. The
// fit itself is in ch07_fit.h, the table and the pictures in ch07_report.h.

// [region: model]
static void cost(dt_algorithm way, int p, double n, double c[3]) {
    double up = 0.0, down = 0.0;
    while (1 << (int)up < p) ++up;
    while (2 << (int)down <= p) ++down;
    // fold: p is no power of two, and extra ranks give first
    const double fold = up > down, part = (p - 1.0) / p * n;
    if (way == DT_NAIVE) c[0] = 2 * (p - 1), c[1] = 2 * (p - 1) * n, c[2] = (p - 1) * n;
    if (way == DT_TREE) c[0] = 2 * up, c[1] = 2 * up * n, c[2] = up * n;
    if (way == DT_RING) c[0] = 2 * (p - 1), c[1] = 2 * part, c[2] = part;
    if (way == DT_DOUBLING)
        c[0] = down + 2 * fold, c[1] = (down + 2 * fold) * n, c[2] = (down + fold) * n;
    if (way == DT_HALVING) { // on 2^down ranks
        const double piece = (1.0 - 1.0 / (1 << (int)down)) * n;
        c[0] = 2 * down + 2 * fold, c[1] = 2 * piece + 2 * fold * n, c[2] = piece + fold * n;
    }
}
// [end]

// ## 7.6 Which to use, and when
//
// The table, the fit, and the verdict, computed from this run's numbers: a way stays the winner
// until another is 15 % faster.
//
// The pictures are for 2 ranks (figures/ch07_messages.csv, figures/ch07_shared.csv). With two there
// is little to choose: naive and tree send the same two messages, ring and halving the same two
// halves; so of the five, three are left in the first picture. Long vectors cost bytes: at 4 MiB
// naive sends the vector twice, one after the other, in 0.83 ms; ring, which sends a half each way,
// both ranks at once, takes 0.36. Short vectors cost start-ups: at 64 B doubling's one message
// takes 0.37 us and ring's two 0.68.
//
// The dashed lines are the model. With three numbers it explains half of all points within a factor
// of 1.23, and where it fails one learns something. At 64 B naive takes 0.38 us, hardly more than
// doubling, for two messages: here a message that goes one way costs less than one that crosses
// another. From 4 to 16 KiB the times jump. At 16 MiB, beyond the caches, a byte is dearer: naive
// takes 3.3 times what the model says, which knows one price for all.
//
// The second picture has the best of the five for long vectors beside MPI's own and the one through
// shared memory. That one sends no messages, and is the fastest at every size here.
//
// Picture: ch07_messages
//
// Picture: ch07_shared

// [region: verdict]
static int winner(const results *r, int k, int first, int last, int so_far) {
    int best = first;
    for (int w = first; w < last; ++w)
        if (r->t[w][k].median < r->t[best][k].median) best = w;
    return so_far >= 0 && r->t[so_far][k].median < 1.15 * r->t[best][k].median ? so_far : best;
}

typedef struct findings { int best; char messages[200], shared[200]; } findings;

static void verdict(const results *r, findings *found) {
    char a[16], b[16];
    int first = winner(r, 0, 0, 5, -1), now = first, from = 0, last_from = 0;
    printf("\nof the five that send messages:\n");
    for (int k = 1; k <= r->sizes; ++k) {
        const int next = k < r->sizes ? winner(r, k, 0, 5, now) : -1;
        if (next == now) continue;
        printf("  %-8s  to %-8s use %s\n", size_text(r->bytes[from], a),
               size_text(r->bytes[k - 1], b), dt_algorithm_name(ways[now]));
        last_from = from, from = k;
        if (next >= 0) now = next;
    }
    found->best = now;
    say_messages(r->p, dt_algorithm_name(ways[first]), dt_algorithm_name(ways[now]),
                 size_text(r->bytes[last_from], b), found->messages, sizeof found->messages);
    const int big = r->sizes - 1;
    const bool one_host = r->ways == WAYS;
    const double gain = one_host ? r->t[now][big].median / r->t[WAYS - 1][big].median : 0.0;
    say_shared(gain, dt_algorithm_name(ways[now]), size_text(r->bytes[big], a), found->shared,
               sizeof found->shared);
    int wins = 0;
    for (int k = 0; k < r->sizes; ++k) wins += r->t[6][k].median < r->t[5][k].median;
    if (!one_host) printf("ranks on several hosts share no memory: that way was not measured\n");
    else printf("%s, and faster than MPI's own at %d of %d sizes\n", found->shared, wins, r->sizes);
}
// [end]

int main(int argc, char **argv) {
    const char *png = NULL;
    bool quick = false;
    const option_desc options[] = {
        { "png", 's', &png, "NAME   NAME_messages.png and NAME_shared.png, with CSVs; default "
                             "out/ch07, with --quick none" },
        QUICK_OPTION(&quick),
    };
    dt_comm *comm = begin_program(
        argc, argv,
        "All-reduce by hand, measured from 4 bytes to 16 MB. Start it with mpiexec -n 3.", options,
        sizeof options);
    end_cleanly_on_signals();
    if (!png && !quick) png = "out/ch07";
    if (png) check_output(comm, "%s_messages.png", png);
    print_machine(comm, NULL, 1);
    check(comm, send_and_receive(comm));
    check(comm, sum_of_three(comm));
    check(comm, check_broadcast(comm));
    check(comm, same_as_header(comm, naive, DT_NAIVE));
    check(comm, same_as_header(comm, tree, DT_TREE));
    check(comm, same_as_header(comm, ring, DT_RING));
    check(comm, same_as_header(comm, doubling, DT_DOUBLING));
    if (dt_comm_size(comm) > 1) {
        static results r;
        findings found;
        check(comm, measure(comm, &(written_out){ add, time_allreduce, cost }, quick, &r));
        if (dt_comm_rank(comm) == 0) {
            print_table(&r);
            verdict(&r, &found);
            if (png) draw_messages(comm, &r, found.messages, png);
            if (png) draw_shared(comm, &r, found.best, found.shared, png);
        }
    }
    return end_program(comm, NULL, NULL);
}

// ## 7.7 Exercises
//
// 1. **Predict.** On 8 ranks, how many messages does rank 0 send in each of the four ways, and how
//    many bytes of a vector of 1 MiB? dt_comm_times tells the numbers; dt_allreduce_step lists the
//    steps without running any.
// 2. **Implement.** Halving: like doubling, but partners exchange only the half that the other
//    keeps, then a quarter. Hold it against DT_HALVING.
// 3. **Measure.** Run with 2, 3, 4 and 5 ranks. Which of the three fitted numbers grows when ranks
//    outnumber cores, and why is it that one? Then say DTRAIN_WAIT=spin before mpiexec (a rank that
//    waits then keeps asking, instead of leaving its core to others) and look again.
// 4. **Predict, then measure.** The gradient of 9840 parameters is 78720 bytes as 64-bit integers
//    (chapter 8 says why). How long does each way take for it? Use the model with your run's alpha,
//    beta and gamma.
