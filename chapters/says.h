// Sentences that are drawn from numbers. A title or a comment that was true on one machine is false
// on the next, so each of these takes what was measured, and chooses its words by that.
// tests/test_says.c holds every one against a grid of results.
//
// Words follow the numbers as they are printed: speeds within 5 % count as the same, accuracies
// within 0.1 points.
#ifndef SAYS_H
#define SAYS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define SAYS static __attribute__((unused))
__attribute__((format(printf, 3, 4)))
#else
#define SAYS static
#endif
SAYS void say(char *text, size_t size, const char *format, ...) { // appends
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

SAYS const char *plural(double n) { return fabs(n - 1.0) < 1e-9 ? "" : "s"; }

typedef enum pace { SLOWER = -1, ALIKE, FASTER, UNKNOWN } pace;

// A ratio of two speeds. No number, or none above 0, is no measurement.
SAYS pace pace_of(double ratio) {
    if (!(ratio > 0.0 && ratio < 1e9)) return UNKNOWN;
    return ratio < 0.95 ? SLOWER : ratio > 1.05 ? FASTER : ALIKE;
}

// "1.90 times as fast as", to stand between two things that were timed.
SAYS const char *as_fast_as(double ratio, char text[64]) {
    const pace p = pace_of(ratio);
    text[0] = '\0';
    if (p == UNKNOWN) say(text, 64, "not compared with");
    else if (p == ALIKE) say(text, 64, "about as fast as");
    else if (p == FASTER)
        say(text, 64, ratio < 10.0 ? "%.2f times as fast as" : "%.0f times as fast as", ratio);
    else
        say(text, 64,
            ratio >= 0.01 ? "only %.2f times as fast as" : "less than 0.01 times as fast as",
            ratio);
    return text;
}

// ---- Chapter 12: methods with one, two, ... workers. speed[i] is that of workers[i] against the
// ---- first; workers rise.

typedef enum says_method { SAYS_SYNC, SAYS_PSGD, SAYS_HOGWILD } says_method;

SAYS int fastest(int n, const double *speed) {
    int best = 0;
    for (int i = 1; i < n; ++i)
        if (speed[i] > speed[best]) best = i;
    return best;
}

// Where in the list the most workers stand that still have a core each; -1 if nowhere.
SAYS int last_within(int n, const int *workers, int cores) {
    int at = -1;
    for (int i = 0; i < n; ++i)
        if (workers[i] <= cores) at = i;
    return at;
}

// One sentence about a method's speed; the last clause is true of the method, however fast it was.
SAYS void say_speed(says_method method, const char *name, int n, const int *workers,
                    const double *speed, int cores, char *text, size_t size) {
    static const char *const waits[] = { "In every step all wait for the last rank.",
                                         "Ranks wait for each other only where they average.",
                                         "Workers never wait for each other." };
    text[0] = '\0';
    if (n < 2 || workers[0] != 1) return;
    const int best = fastest(n, speed), full = last_within(n, workers, cores), last = n - 1;
    const pace won = pace_of(speed[best]);
    if (won == FASTER)
        say(text, size, "%s: fastest with %d workers, %.2f times one worker.", name, workers[best],
            speed[best]);
    else say(text, size, "%s: no number of workers is faster than one by more than 5 %%.", name);
    if (full >= 0 && full < last && pace_of(speed[full]) != UNKNOWN) { // more workers than cores
        const pace then = pace_of(speed[last] / speed[full]);
        say(text, size, " With %d on %d core%s it is %.2f, with %d that share the cores %.2f%s.",
            workers[full], cores, plural(cores), speed[full], workers[last], speed[last],
            then == ALIKE    ? ", about the same"
            : then == FASTER ? ", faster still"
                             : ", slower");
    }
    say(text, size, " %s", waits[method]);
}

SAYS void say_speed_title(const char *data, int n, const int *workers, const double *speed,
                          int cores, char *text, size_t size) {
    text[0] = '\0';
    if (n < 2 || workers[0] != 1) {
        say(text, size, "%s: speed by number of workers", data);
        return;
    }
    const int best = fastest(n, speed), full = last_within(n, workers, cores);
    if (pace_of(speed[best]) != FASTER) {
        say(text, size, "%s: %d to %d synchronous ranks on %d core%s train no faster than one",
            data, workers[1], workers[n - 1], cores, plural(cores));
        return;
    }
    say(text, size, "%s: %d synchronous ranks train %.2f times as fast as one", data, workers[best],
        speed[best]);
    if (full < 0 || full == n - 1) return; // nobody shared a core
    if (best > full)
        say(text, size, "; %d on the %d core%s, %.2f times", workers[full], cores, plural(cores),
            speed[full]);
    else say(text, size, "; more than the %d core%s gain nothing", cores, plural(cores));
}

// seconds of an epoch with workers[i] ranks
SAYS void say_epoch_title(const char *data, double images, int n, const int *workers,
                          const double *seconds, char *text, size_t size) {
    int best = 0;
    for (int i = 1; i < n; ++i)
        if (seconds[i] < seconds[best]) best = i;
    text[0] = '\0';
    if (n == 0) { say(text, size, "%s: training time", data); return; }
    say(text, size, "%s: synchronous SGD takes %.2f s for an epoch of %.0f images on %d rank%s",
        data, seconds[0], images, workers[0], plural(workers[0]));
    if (best > 0) say(text, size, ", and at best %.2f s, on %d", seconds[best], workers[best]);
    else if (n > 1) say(text, size, ", and no less on more");
}

// Accuracies are fractions: 0.98 is 98 %. `same` is whether all ended with the same bits. Last, how
// many ranks average, and the least and the most that their runs had.
SAYS void say_accuracy_title(const char *data, int n, bool same, double low, double high,
                             int averaged, double least, double most, char *text, size_t size) {
    text[0] = '\0';
    if (n == 0) { say(text, size, "%s: accuracy", data); return; }
    say(text, size, "%s: summing gradients ", data);
    if (n > 1 && same) say(text, size, "keeps %.2f %% for every number of workers", 100.0 * low);
    else if (high - low < 5e-5) say(text, size, "gives %.2f %%", 100.0 * low);
    else say(text, size, "gives %.2f to %.2f %%", 100.0 * low, 100.0 * high);
    if (averaged > 1 && most - least < 5e-5)
        say(text, size, "; %d that average give %.2f %%", averaged, 100.0 * least);
    else if (averaged > 1)
        say(text, size, "; %d that average end between %.2f and %.2f %%", averaged, 100.0 * least,
            100.0 * most);
}

SAYS void say_same_bits(const char *name, bool same, double low, double high, char *text,
                        size_t size) {
    text[0] = '\0';
    if (same)
        say(text, size,
            "%s: every number of workers ends with the same parameters, bit for bit, and %.2f %% "
            "accuracy.",
            name, 100.0 * low);
    else
        say(text, size,
            "%s: accuracy between %.2f and %.2f %%; the parameters differ between numbers of "
            "workers.",
            name, 100.0 * low, 100.0 * high);
}

// How accuracy moves from few workers to many, and by what the method could move it. Runs that
// differ by `range` among themselves tell no smaller difference, unless all runs with few workers
// lie on one side of all runs with many: `apart`.
SAYS void say_accuracy(says_method method, const char *name, int first, double from, int last,
                       double to, double range, bool apart, char *text, size_t size) {
    static const char *const because[] = {
        "Gradients are summed in every step.",
        "Each rank sees only its share of the data between two averages.",
        "Workers compute changes on parameters that others move meanwhile."
    };
    const double points = 100.0 * (to - from);
    text[0] = '\0';
    say(text, size, "%s: accuracy ", name);
    if (fabs(points) < (apart ? 0.1 : fmax(0.1, 100.0 * range)))
        say(text, size, "is about the same, %.2f %% with %d worker%s and %.2f %% with %d.",
            100.0 * from, first, plural(first), 100.0 * to, last);
    else
        say(text, size, "%s from %.2f %% with %d worker%s to %.2f %% with %d.",
            points < 0.0 ? "falls" : "rises", 100.0 * from, first, plural(first), 100.0 * to, last);
    if (range >= 0.001)
        say(text, size, " Runs of one number of workers differ by up to %.1f points.",
            100.0 * range);
    say(text, size, " %s", because[method]);
}

// ---- Chapter 4: steps of one kernel. speed[] in GFLOP/s, the first is the plain loop.

SAYS void say_ladder(int n, const double *speed, double peak, char *text, size_t size) {
    char ratio[64];
    text[0] = '\0';
    say(text, size, "Step %d is %s step 1, at %.0f %% of the core's peak", n,
        as_fast_as(speed[n - 1] / speed[0], ratio), 100.0 * speed[n - 1] / peak);
    if (speed[n - 1] > 1.005 * peak) say(text, size, ": it multiplies less"); // 101 % as printed
}

// Intensities are counted, so where the steps stand from left to right is certain; how high is
// measured.
SAYS void say_roofline(const double intensity[2], double lanes, double tile, char *text,
                       size_t size) {
    char first[64], second[64];
    text[0] = '\0';
    say(text, size,
        "With lanes the loop is %s before; the register tile is %s that, at %.1f times the flop a "
        "byte",
        as_fast_as(lanes, first), as_fast_as(tile, second), intensity[1] / intensity[0]);
}

// Forms of one convolution, the first by its definition: the fastest, and how much larger its error
// is.
SAYS void say_forms(int n, const char *const *names, const double *speed, const double *error,
                    char *text, size_t size) {
    const int best = fastest(n, speed);
    char ratio[64];
    text[0] = '\0';
    if (pace_of(speed[best] / speed[0]) != FASTER)
        say(text, size, "No form is faster than %s", names[0]);
    else
        say(text, size, "%s is %s %s, with %.1f times its error", names[best],
            as_fast_as(speed[best] / speed[0], ratio), names[0], error[best] / error[0]);
}

// ---- Chapter 6: losses and accuracies of optimizers, the first is plain SGD.

SAYS void say_loss(int epochs, int n, const char *const *names, const double *loss, char *text,
                   size_t size) {
    int best = 0;
    for (int k = 1; k < n; ++k)
        if (loss[k] < loss[best]) best = k;
    text[0] = '\0';
    say(text, size, "After %d epoch%s the training loss is %.2f with plain SGD", epochs,
        plural(epochs), loss[0]);
    if (best > 0) say(text, size, ", and at best %.2f, with %s", loss[best], names[best]);
    else say(text, size, ", and no less with any other");
}

SAYS void say_best(int n, const char *const *names, const double *accuracy, const double *seconds,
                   char *text, size_t size) {
    int best = 0;
    for (int k = 1; k < n; ++k)
        if (accuracy[k] > accuracy[best]) best = k;
    text[0] = '\0';
    say(text, size, "One core reaches %.1f %% in %.1f s of training with %s",
        100.0 * accuracy[best], seconds[best], best ? names[best] : "plain SGD");
    if (best > 0) say(text, size, "; with plain SGD %.1f %%", 100.0 * accuracy[0]);
    else say(text, size, "; with no other more");
}

// ---- Chapter 7: the way that serves small vectors, the way that serves large ones; and shared
// ---- memory against that.

SAYS void say_messages(int ranks, const char *small, const char *large, const char *from,
                       char *text, size_t size) {
    text[0] = '\0';
    say(text, size, "%d rank%s, by messages: ", ranks, plural(ranks));
    if (strcmp(small, large) == 0) say(text, size, "%s for the smallest and the largest", small);
    else say(text, size, "%s is the fastest at first, %s from %s on", small, large, from);
}

SAYS void say_shared(double ratio, const char *than, const char *at, char *text, size_t size) {
    char words[64];
    text[0] = '\0';
    if (pace_of(ratio) == UNKNOWN) // several hosts
        say(text, size, "MPI's own all-reduce beside %s", than);
    else say(text, size, "At %s shared memory is %s %s", at, as_fast_as(ratio, words), than);
}

// ---- Chapter 12's forecast: of one batch over more ranks, the number that is fastest on a slow
// ---- and on a fast network; of a batch for each of many ranks, their speed over one's.

SAYS void say_strong(int batch, const char *slow, int slow_ranks, double slow_speed,
                     const char *fast, int fast_ranks, double fast_speed, char *text,
                     size_t size) {
    const int ranks[] = { slow_ranks, fast_ranks };
    const double speed[] = { slow_speed, fast_speed };
    const char *const name[] = { slow, fast };
    text[0] = '\0';
    say(text, size, "Forecast, one batch of %d over P ranks:", batch);
    for (int i = 0; i < 2; ++i)
        if (ranks[i] == 1)
            say(text, size, "%s at %s no number is faster than one", &";"[i < 1], name[i]);
        else
            say(text, size, "%s at %s %d are the fastest, %.1f times one", &";"[i < 1], name[i],
                ranks[i], speed[i]);
}

SAYS void say_weak(int batch, int ranks, const char *slow, double slow_speed, const char *fast,
                   double fast_speed, char *text, size_t size) {
    char one[64], two[64];
    text[0] = '\0';
    say(text, size, "Forecast, a batch of %d for each rank: %d are %s one at %s, %s one at %s",
        batch, ranks, as_fast_as(slow_speed, one), slow, as_fast_as(fast_speed, two), fast);
}

// ---- Chapter 8: what exact sums cost, as seconds over those of float sums.

SAYS void say_cost(double ratio, char *text, size_t size) {
    const double percent = 100.0 * (ratio - 1.0);
    text[0] = '\0';
    say(text, size, "taking groups one at a time and rounding each ");
    if (pace_of(ratio) == UNKNOWN) say(text, size, "was not measured");
    else if (fabs(percent) < 5.0) say(text, size, "takes about the same time");
    else say(text, size, "takes %.0f %% %s time", fabs(percent), percent > 0.0 ? "more" : "less");
    say(text, size, " here at P = 1");
}

// The ends of the curves of P = 1 to 4, and of 4 ranks that throw the sum away. `one`: all points
// of the four are the same.

SAYS void say_one_curve(bool one, double low, double high, double lost, char *text, size_t size) {
    text[0] = '\0';
    if (one) say(text, size, "P = 1, 2, 3 and 4 draw one curve, to %.1f %%", 100.0 * low);
    else
        say(text, size, "P = 1 to 4 differ, and end at %.1f to %.1f %%", 100.0 * low, 100.0 * high);
    say(text, size, "; with the sum thrown away, 4 ranks reach %.1f %%", 100.0 * lost);
}

// ---- Chapter 9: bytes that a rank sends, with an average every so many steps, and with one at the
// ---- end.

SAYS void say_traffic(unsigned every, double bytes, double once, char *text, size_t size) {
    char often[40] = "in every step";
    if (every > 1) snprintf(often, sizeof often, "every %u steps", every);
    text[0] = '\0';
    if (!(once > 0.0)) say(text, size, "One rank alone sends nothing");
    else if (bytes > 1.05 * once)
        say(text, size, "An average %s sends %.*f times what one at the end does", often,
            bytes < 10.0 * once ? 1 : 0, bytes / once);
    else say(text, size, "An average %s sends as much as one at the end", often);
}

// Accuracies with an average every so many steps and with one at the end: the least, the median and
// the most of several seeds. Where the ranges overlap, the seeds say no more than that they do.

SAYS void say_averages(int ranks, unsigned every, const double often[3], const double once[3],
                       double alone, char *text, size_t size) {
    char when[40] = "in every step";
    if (every > 1) snprintf(when, sizeof when, "every %u steps", every);
    text[0] = '\0';
    say(text, size, "P = %d: %.1f %% with an average %s, %.1f %% with one at the end", ranks,
        100.0 * often[1], when, 100.0 * once[1]);
    if (often[0] <= once[2] && once[0] <= often[2] && often[2] + once[2] > often[0] + once[0])
        say(text, size, ", no more apart than seeds");
    say(text, size, "; alone, a rank has %.1f %%", 100.0 * alone);
}

// ---- Chapter 10: additions lost, as a part of all. A few of many are not "0.0000 %".

SAYS void say_lost(double lost, double all, char *text, size_t size) {
    const double percent = 100.0 * lost / all;
    text[0] = '\0';
    if (!(lost > 0.0)) say(text, size, "none");
    else if (percent < 0.0001) say(text, size, "%.0f of %.0f", lost, all);
    else say(text, size, percent < 99.99995 || lost >= all ? "%.4f %%" : "nearly all", percent);
}

// ---- LeNet: the condition of an article, Tsync/Tcomp < R - 1, and the speed against one rank
// ---- alone, which it does not ask.

SAYS void say_condition(int ranks, double ratio, double gain, int cores, char *text, size_t size) {
    char fast[64];
    text[0] = '\0';
    if (ranks == 1) { say(text, size, "one rank: nothing to win, nothing to pay"); return; }
    say(text, size, "the condition %s; measured, %d ranks are %s one rank alone",
        ratio < ranks - 1 ? "holds" : "does not hold", ranks, as_fast_as(gain, fast));
    if ((ratio < ranks - 1) != (gain > 1.0))
        say(text, size,
            "; the condition takes Tcomp for what one rank alone needs, which it is not here");
    if (ranks > cores) say(text, size, "; %d ranks share %d core%s", ranks, cores, plural(cores));
}

#endif
