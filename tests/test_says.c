/* The sentences of chapters/says.h against a grid of results that could be measured: each is read again, word by word and
   number by number, and must not say what its numbers do not. The rules here are written without the ones there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../chapters/says.h"

static char text[500];
static const double ratios[] = { 0.0, 0.004, 0.2, 0.5, 0.88, 0.949, 0.951, 0.999, 1.0, 1.02, 1.049, 1.051, 1.14, 1.9, 2.0, 3.7, 5.0, 8.0, 9.999, 10.0, 250.0 };
enum { RATIOS = sizeof ratios / sizeof *ratios };

static bool says(const char *word) { return strstr(text, word) != NULL; }

#define RULE(what, ...) do { if (!(what)) { printf(__VA_ARGS__); fail_msg(": \"%s\" breaks %s", text, #what); } } while (0)

/* What no sentence may have, whatever it is about. */
static void sound(void) {
    static const char *const never[] = { "nan", "inf", " 1 ranks", " 1 workers", " 1 cores", " 1 epochs", " 0.0000 %", "-", "  ", " ,", " ;", "%%", " 0.00 times", " 0 times" };
    RULE(*text && strlen(text) < sizeof text - 1, "length %zu", strlen(text));
    for (size_t i = 0; i < sizeof never / sizeof *never; ++i) RULE(!says(never[i]), "\"%s\"", never[i]);
    RULE(!strstr(text, "P = 1 ") || text[strlen(text) - 1] != ' ', "end");
}

/* The number before a word; NAN if the word is not there. */
static double before(const char *word) {
    const char *at = strstr(text, word);
    if (!at) return (double)NAN;
    while (at > text && at[-1] == ' ') --at;
    while (at > text && strchr("0123456789.", at[-1])) --at;
    return strtod(at, NULL);
}

static bool near(double said, double is, double decimals) { return fabs(said - is) <= 0.5001 * pow(10, -decimals); }

/* ---- One ratio ---- */

static void ratios_are_in_the_right_words(void **state) {
    (void)state;
    char words[64];
    for (int i = 0; i < RATIOS + 3; ++i) {
        const double r = i < RATIOS ? ratios[i] : i == RATIOS ? (double)NAN : i == RATIOS + 1 ? (double)INFINITY : -2.0;
        snprintf(text, sizeof text, "%s", as_fast_as(r, words));
        sound();
        const double said = before("times as fast");
        if (!(r > 0.0) || isinf(r)) RULE(says("not compared"), "%g", r);
        else if (isnan(said)) RULE(says("about as fast") && r >= 0.95 && r <= 1.05, "%g", r);
        else RULE(says("only") == (r < 0.95 && r >= 0.01) && (r < 0.01 || near(said, r, r < 10.0 ? 2 : 0)), "%g", r);
    }
}

/* ---- Methods, workers, cores, speeds ---- */

enum { MOST = 6 };
typedef void (*held)(says_method method, int n, const int *workers, const double *speed, int cores);

/* Every method, one to five numbers of workers, one to eight cores, and of the speeds all shapes: that of the second, of
   the middle and of the last against the first are each every ratio from 0.2 on. Not all start with one worker. */
static void over_the_grid(held hold) {
    for (int method = 0; method < 3; ++method)
        for (int n = 1; n <= 5; ++n)
            for (int start = 1; start <= 2; ++start)
                for (int cores = 1; cores <= 8; ++cores)
                    for (int a = 2; a < RATIOS; ++a)
                        for (int b = 2; b < RATIOS; ++b)
                            for (int c = 2; c < RATIOS; c += 2) {
                                const int workers[5] = { start, start + 1, start + 2, start + 3, start + 4 };
                                double speed[5] = { 1.0, ratios[a], ratios[b], 0.5 * (ratios[b] + ratios[c]), ratios[c] };
                                for (int i = 0; i < 5 && start > 1; ++i) speed[i] = (double)NAN; /* nothing to compare with */
                                if ((n < 4 && c > 2) || (n < 2 && a + b > 4)) continue;
                                hold((says_method)method, n, workers, speed, cores);
                            }
}

static double most_of(int n, const double *v) {
    double most = v[0];
    for (int i = 1; i < n; ++i) most = v[i] > most ? v[i] : most;
    return most;
}

static void hold_speed(says_method method, int n, const int *workers, const double *speed, int cores) {
    say_speed(method, "It", n, workers, speed, cores, text, sizeof text);
    if (n < 2 || workers[0] != 1) { assert_int_equal(strlen(text), 0); return; }
    sound();
    const double most = most_of(n, speed), said = before("times one worker");
    RULE(says("never wait") == (method == SAYS_HOGWILD), "method %d", (int)method); /* ranks of sync and of psgd do wait */
    RULE(says("In every step all wait") == (method == SAYS_SYNC), "method %d", (int)method);
    RULE(says("no number of workers is faster") == (most <= 1.05), "most %g", most);
    RULE(isnan(said) ? most <= 1.05 : near(said, most, 2), "most %g", most);
    RULE(isnan(before("workers,")) || fabs(speed[(int)before("workers,") - 1] - most) < 1e-12, "fastest");
    int full = 0; /* workers with a core each */
    for (int i = 0; i < n; ++i) full = workers[i] <= cores ? i : full;
    RULE(says("share the cores") == (workers[n - 1] > cores), "cores %d", cores);
    if (!says("share the cores")) return;
    const double change = speed[n - 1] / speed[full];
    RULE(says("about the same") == (change >= 0.95 && change <= 1.05), "change %g", change);
    RULE(says("faster still") == (change > 1.05), "change %g", change);
    RULE(says(", slower") == (change < 0.95), "change %g", change);
}

static void hold_speed_title(says_method method, int n, const int *workers, const double *speed, int cores) {
    if (method != SAYS_SYNC) return; /* it is about synchronous ranks */
    say_speed_title("MNIST", n, workers, speed, cores, text, sizeof text);
    sound();
    const double said = before("times as fast as one");
    if (n < 2 || workers[0] != 1) { RULE(isnan(said) && !says("gain"), "one point"); return; }
    const double most = most_of(n, speed);
    double within = 0.0, beyond = 0.0;
    for (int i = 0; i < n; ++i) *(workers[i] <= cores ? &within : &beyond) = fmax(workers[i] <= cores ? within : beyond, speed[i]);
    RULE(says("no faster") == (most <= 1.05), "most %g", most);
    RULE(isnan(said) == (most <= 1.05) && (isnan(said) || near(said, most, 2)), "most %g", most);
    if (says("gain nothing")) RULE(beyond > 0.0 && beyond <= within, "within %g, beyond %g", within, beyond); /* so the fastest is not one of them */
    const double ranks = before("synchronous ranks train");
    RULE(isnan(ranks) || (fabs(speed[(int)ranks - 1] - most) < 1e-12), "fastest");
    RULE(isnan(ranks) || !says("gain nothing") || (int)ranks <= cores, "ranks %g", ranks);
}

static void hold_epoch_title(says_method method, int n, const int *workers, const double *speed, int cores) {
    double seconds[MOST];
    if (method != SAYS_SYNC || cores > 1) return;
    for (int i = 0; i < n; ++i) seconds[i] = workers[0] == 1 ? 3.0 / speed[i] : 3.0 + i;
    say_epoch_title("MNIST", 60000, n, workers, seconds, text, sizeof text);
    sound();
    double least = seconds[0];
    for (int i = 1; i < n; ++i) least = fmin(least, seconds[i]);
    RULE(near(before("s for"), seconds[0], 2), "first");
    RULE(says("at best") == (least < seconds[0]), "least %g", least);
    RULE(isnan(before("s, on")) || near(before("s, on"), least, 2), "least %g", least);
    RULE(says("no less") == (n > 1 && least >= seconds[0]), "least %g", least);
}

static void speeds_are_said_as_measured(void **state) {
    (void)state;
    over_the_grid(hold_speed);
    over_the_grid(hold_speed_title);
    over_the_grid(hold_epoch_title);
}

/* The results that were once said wrong. */
static void what_was_said_wrong(void **state) {
    (void)state;
    static const int five[] = { 1, 2, 3, 4, 5 };
    static const double slow[] = { 1, 1.02, 1.05, 1.09, 1.14 };
    say_speed_title("MNIST", 5, five, slow, 2, text, sizeof text);
    assert_string_equal(text, "MNIST: 5 synchronous ranks train 1.14 times as fast as one; 2 on the 2 cores, 1.02 times");
    say_speed(SAYS_SYNC, "Synchronous SGD", 5, five, (const double[]){ 1, 1.8, 1.75, 1.8, 1.78 }, 2, text, sizeof text);
    assert_false(says("never wait"));
    say_cost(0.88, text, sizeof text);
    assert_string_equal(text, "taking groups one at a time and rounding each takes 12 % less time here at P = 1");
    say_lost(3, 20000000, text, sizeof text);
    assert_string_equal(text, "3 of 20000000");
}

/* ---- Accuracies ---- */

static void accuracies_are_said_as_measured(void **state) {
    (void)state;
    static const double points[] = { 0, 0.001, 0.049, 0.099, 0.101, 0.5, 1, 2.5, 5, -0.001, -0.099, -0.101, -0.5, -1, -3, -10, -30 };
    static const double from[] = { 0.30, 0.85, 0.9 };
    for (size_t p = 0; p < sizeof points / sizeof *points; ++p)
        for (int f = 0; f < 3; ++f)
            for (int method = 0; method < 3; ++method)
                for (int last = 2; last < 6; ++last) {
                    const double to = from[f] + points[p] / 100, low = fmin(from[f], to), high = fmax(from[f], to);
                    say_accuracy((says_method)method, "It", last - 1, from[f], last, to, 0.006, false, text, sizeof text);
                    sound();
                    RULE(says("about the same") == (fabs(points[p]) < 0.6) && says("by up to 0.6 points"), "%g points", points[p]);
                    say_accuracy((says_method)method, "It", last - 1, from[f], last, to, 0.006, true, text, sizeof text);
                    sound();
                    RULE(says("about the same") == (fabs(points[p]) < 0.1) && says("by up to 0.6 points"), "%g points", points[p]);
                    say_accuracy((says_method)method, "It", last - 1, from[f], last, to, 0.0, false, text, sizeof text);
                    sound();
                    RULE(!says("by up to"), "runs that do not differ");
                    RULE(says("falls") == (points[p] < -0.1), "%g points", points[p]);
                    RULE(says("rises") == (points[p] > 0.1), "%g points", points[p]);
                    RULE(says("about the same") == (fabs(points[p]) < 0.1), "%g points", points[p]);
                    RULE(near(before("% with"), 100 * from[f], 2), "from");
                    for (int same = 0; same < 2; ++same) {
                        if (same && fabs(points[p]) > 0) continue; /* the same bits have one accuracy */
                        const double apart = last % 2 ? 0.002 : 0.0; /* between the least and the most of some runs */
                        say_accuracy_title("MNIST", last, same, low, high, last, to, to + apart, text, sizeof text);
                        sound();
                        RULE(says("average end between") == (apart > 0.0), "runs %g apart", apart);
                        RULE(says("every number") == (same != 0), "same %d", same);
                        RULE(says(" to ") == (high - low >= 5e-5), "range %g", high - low);
                        say_same_bits("It", same, low, high, text, sizeof text);
                        sound();
                        RULE(says("bit for bit") == (same != 0) && says("differ") == !same, "same %d", same);
                    }
                    say_accuracy_title("MNIST", 1, true, from[f], from[f], 0, 0.0, 0.0, text, sizeof text);
                    RULE(!says("every number") && !says("average"), "one run of one method");
                }
}

/* ---- The other chapters ---- */

static void chapters_say_what_they_measured(void **state) {
    (void)state;
    static const char *const names[] = { "sgd", "momentum", "nesterov", "adam" };
    for (int i = 1; i < RATIOS; ++i)
        for (int k = 1; k < RATIOS; ++k) {
            const double r = ratios[i], q = ratios[k], four[4] = { 0.5, 0.5 / r, 0.5 / q, 0.5 }, seconds[4] = { 1, 2, 3, 4 };
            const double least = fmin(four[1], four[2]), most = fmax(four[1], four[2]);
            say_ladder(5, (const double[]){ 2, 1, 3, 5, 2 * r }, 40 * q, text, sizeof text);
            sound();
            RULE(says("only") == (r < 0.95 && r >= 0.01), "ratio %g", r);
            RULE(says("multiplies less") == (before(" % of the core's peak") > 100.0), "%g of %g", 2 * r, 40 * q);
            say_forms(3, (const char *const[]){ "direct", "F(2,3)", "F(4,3)" }, (const double[]){ 1, r, q },
                      (const double[]){ 1, 2, 3 }, text, sizeof text);
            sound();
            RULE(says("No form is faster") == (fmax(r, q) <= 1.05), "ratios %g and %g", r, q);
            RULE(says("No form") || (says(r >= q ? "F(2,3) is" : "F(4,3) is") && before(" times its error") == (r >= q ? 2 : 3)),
                 "ratios %g and %g", r, q);
            say_roofline((const double[]){ 0.25, 2.5 }, r, q, text, sizeof text);
            sound();
            say_loss(i, 4, names, four, text, sizeof text);
            sound();
            RULE(says("at best") == (least < 0.5) && says("no less") == (least >= 0.5), "least %g", least);
            RULE(!says("at best") || says(four[1] <= four[2] ? "with momentum" : "with nesterov"), "least %g", least);
            say_best(4, names, four, seconds, text, sizeof text);
            sound();
            RULE(says("no other more") == (most <= 0.5), "most %g", most);
            RULE(says(most <= 0.5 ? "with plain SGD" : four[1] >= four[2] ? "with momentum" : "with nesterov"), "most %g", most);
            say_traffic((unsigned)k, 1000 * r, 1000, text, sizeof text);
            sound();
            RULE(isnan(before("times what")) == (r <= 1.05) && says("as much as") == (r <= 1.05), "ratio %g", r);
            RULE(says("in every step") == (k == 1), "every %d", k);
            for (int p = 2; p < 5; ++p)
                for (int cores = 1; cores < 5; ++cores) {
                    say_condition(p, r, q, cores, text, sizeof text);
                    sound();
                    RULE(says("does not hold") == (r >= p - 1), "ratio %g, %d ranks", r, p);
                    RULE(says("only") == (q < 0.95 && q >= 0.01), "gain %g", q);
                    RULE(says("which it is not") == ((r < p - 1) != (q > 1)), "ratio %g, gain %g", r, q);
                    RULE(says(" share ") == (p > cores), "%d ranks, %d cores", p, cores);
                }
            say_messages(k + 1, names[i % 4], names[k % 4], "4 KiB", text, sizeof text);
            sound();
            RULE(says("from 4 KiB") == (i % 4 != k % 4), "ways");
            say_shared(r, names[k % 4], "16 MiB", text, sizeof text);
            sound();
            RULE(says("only") == (r < 0.95 && r >= 0.01), "ratio %g", r);
            RULE(says("shared memory") == (r > 0 && r < 1e9), "ratio %g", r);
            say_strong(128, "slow", i + 1, 1 + i, "fast", k + 1, 1 + k, text, sizeof text);
            sound();
            RULE(says("slow no number") == (i == 0) && says("fast no number") == (k == 0), "%d and %d ranks", i + 1, k + 1);
            say_weak(128, 1024, "slow", r, "fast", q, text, sizeof text);
            sound();
        }
    for (int i = 0; i < RATIOS; ++i) {
        say_cost(ratios[i], text, sizeof text);
        sound();
        RULE(says("more time") == (ratios[i] >= 1.05) && says("less time") == (ratios[i] > 0.0 && ratios[i] <= 0.95), "ratio %g", ratios[i]);
    }
    for (int i = 0; i < RATIOS; ++i)
        for (int k = 0; k < RATIOS; ++k) {
            const double low = fmin(ratios[i], ratios[k]) / 250, high = fmax(ratios[i], ratios[k]) / 250;
            say_one_curve(i == k, low, high, ratios[k] / 500, text, sizeof text);
            sound();
            RULE(says("one curve") == (i == k) && says("differ") == (i != k), "curves %d and %d", i, k);
            RULE(near(before("%"), 100 * (i == k ? low : high), 1) || i == k, "high %g", high);
        }
    for (int i = 0; i < 20; ++i)
        for (int k = 0; k < 20; ++k) {
            const double one[3] = { 0.9, 0.9 + 0.001 * i, 0.9 + 0.002 * i }, other[3] = { 0.91, 0.91 + 0.001 * k, 0.91 + 0.002 * k };
            say_averages(4, 1 + 3 * (unsigned)(i % 2), one, other, 0.8, text, sizeof text);
            sound();
            RULE(says("apart than seeds") == (one[2] >= other[0] && i + k > 0), "%g to %g, %g to %g", one[0], one[2], other[0], other[2]);
            RULE(says("in every step") == (i % 2 == 0) && says("every 4 steps") == (i % 2 == 1), "every");
            RULE(near(before("% with an average"), 100 * one[1], 1) && near(before("% with one"), 100 * other[1], 1), "medians");
        }
    for (double lost = 0, all = 2e7; lost <= all; lost = lost < 40 ? lost + 1 : lost < all - 3 ? fmin(all - 3, lost * 3) : lost + 1) {
        say_lost(lost, all, text, sizeof text);
        sound();
        RULE(says("none") == (lost < 0.5), "%g lost", lost);
        RULE(!says("100.0000 %") || lost >= all, "%g lost", lost);
    }
    say_condition(1, 0.1, 1, 2, text, sizeof text), sound();
    say_traffic(1, 0, 0, text, sizeof text), sound();
    say_cost((double)NAN, text, sizeof text), sound();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ratios_are_in_the_right_words),
        cmocka_unit_test(speeds_are_said_as_measured),
        cmocka_unit_test(what_was_said_wrong),
        cmocka_unit_test(accuracies_are_said_as_measured),
        cmocka_unit_test(chapters_say_what_they_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
