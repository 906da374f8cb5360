// dtrain on numbers of your own: rows of floats, with a class or with a number to predict for each.
// Needs dtrain.h and libm.
//
// Run     make vectors && ./vectors           both examples below, on numbers drawn here
//         ./vectors points.csv --classes 2    a file of your own: rows of numbers, the last one the class, 0 or 1; no header
//         ./vectors points.csv                the same, the last one a number to predict
//
// First, which of two spirals that wind around each other does a point (x,y) belong to? Second,
// regression: the height of a surface above (x,y). Both nets have two hidden layers; between them
// only the loss and what is wanted differ.

#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>

enum { DRAWN = 3000, MOST = 100000, MOST_FEATURES = 64 };

static float rows[(size_t)MOST * MOST_FEATURES], wanted[MOST];
static uint8_t labels[MOST];

// ---- The whole of it: a data set over the arrays, a fifth of it kept for testing, a net,
// ---- an optimizer, training.

static dt_err learn(uint32_t count, int features, int classes, int epochs) {
    dt_dataset all, training, testing;
    const uint32_t tests = count / 5;
    DT_TRY(dt_dataset_from(&all, &(dt_arrays){ .count = count,
                                               .channels = features,
                                               .values = rows,
                                               .labels = classes ? labels : NULL,
                                               .classes = classes,
                                               .targets = classes ? NULL : wanted,
                                               .target_width = 1 }));
    DT_TRY(dt_dataset_view(&training, &all, 0, count - tests));
    DT_TRY(dt_dataset_view(&testing, &all, count - tests, tests));
    dt_net *net = dt_net_new(features, 1, 1);
    dt_linear(net, "hidden1", 64);
    dt_relu(net);
    dt_linear(net, "hidden2", 64);
    dt_relu(net);
    dt_linear(net, "out", classes ? classes : 1);
    DT_TRY(dt_net_build(
        net, &(dt_build_desc){
                 .batch = 64, .seed = 1, .loss = classes ? DT_CROSS_ENTROPY : DT_MEAN_SQUARED }));
    dt_optimizer *opt =
        dt_adam(net, &(dt_adam_desc){ .lr = 0.003f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f });
    dt_comm *alone = dt_comm_alone();
    dt_train_result result;
    dt_score score;
    DT_TRY(dt_train_sync(
        net, opt, alone,
        &(dt_train_desc){ .data = &training, .epochs = epochs, .batch = 64, .seed = 1 }, &result));
    DT_TRY(dt_evaluate(net, &testing, alone, &score));

    if (classes) printf("%u test rows: %.1f %% right\n", tests, 100.0 * dt_score_accuracy(&score));
    else { // R^2: the part of the spread that the net explains
        double mean = 0.0, spread = 0.0;
        for (uint32_t i = count - tests; i < count; ++i) mean += (double)wanted[i] / tests;
        for (uint32_t i = count - tests; i < count; ++i)
            spread += ((double)wanted[i] - mean) * ((double)wanted[i] - mean) / tests;
        printf("%u test rows: R^2 = %.4f\n", tests, 1.0 - dt_score_loss(&score) / spread);
    }
    dt_comm_free(alone);
    dt_optimizer_free(opt);
    dt_net_free(net);
    dt_dataset_free(&all);
    return DT_OK;
}

// ---- The numbers: drawn, or read.

static void draw_spirals(void) {
    for (uint32_t n = 0; n < DRAWN; ++n) {
        const dt_philox_block r = dt_philox(1, DT_RNG_TEST, 0, n, 0); // random bits of row n
        const float turn = 9.0f * dt_uniform(r.v[0]) + 0.5f,
                    noise = 0.3f * (dt_uniform(r.v[1]) - 0.5f);
        labels[n] = r.v[2] & 1;
        const float angle = turn + (labels[n] ? 3.14159265f : 0.0f);
        rows[2 * n] = (turn + noise) * cosf(angle);
        rows[2 * n + 1] = (turn + noise) * sinf(angle);
    }
}

static void draw_surface(void) {
    for (uint32_t n = 0; n < DRAWN; ++n) {
        const dt_philox_block r = dt_philox(2, DT_RNG_TEST, 0, n, 0);
        const float x = 4.0f * dt_uniform(r.v[0]) - 2.0f, y = 4.0f * dt_uniform(r.v[1]) - 2.0f;
        rows[2 * n] = x;
        rows[2 * n + 1] = y;
        wanted[n] = sinf(2.0f * x) + x * y + 0.1f * (dt_uniform(r.v[2]) - 0.5f);
    }
}

// Reads rows of numbers between commas; the last of each is what is wanted. In the order of the
// file: shuffle yours if it is sorted.
static dt_err read_rows(const char *path, int classes, uint32_t *count, int *features) {
    static char line[16 * 1024];
    FILE *f = fopen(path, "r");
    if (!f) return dt_fail(DT_EIO, "cannot open %s", path);
    dt_err error = DT_OK;
    for (*count = 0, *features = 0; error == DT_OK && fgets(line, sizeof line, f); ++*count) {
        double number[MOST_FEATURES + 1];
        int n = 0;
        for (char *word = strtok(line, ",\r\n"); word && error == DT_OK;
             word = strtok(NULL, ",\r\n"), ++n)
            error = n > MOST_FEATURES ? dt_fail(DT_EDATA, "more than %d numbers", MOST_FEATURES + 1)
                                      : dt_number_parse(word, &number[n]);
        if (error == DT_OK && (n < 2 || (*features && n != *features + 1) || *count == MOST))
            error = dt_fail(DT_EDATA, "%d numbers where %d are wanted, in at most %d rows", n,
                            *features ? *features + 1 : 2, MOST);
        if (error != DT_OK) {
            error = dt_fail(error, "%s, line %u: %s", path, *count + 1, dt_error());
            break;
        }
        *features = n - 1;
        for (int k = 0; k < n - 1; ++k)
            rows[*count * (uint32_t)(n - 1) + (uint32_t)k] = (float)number[k];
        wanted[*count] = (float)number[n - 1];
        if (!classes) continue;
        if (!(number[n - 1] >= 0.0 && number[n - 1] < classes &&
              number[n - 1] == floor(number[n - 1])))
            error = dt_fail(DT_EDATA, "%s, line %u: %g is no class from 0 to %d", path, *count + 1,
                            number[n - 1], classes - 1);
        else labels[*count] = (uint8_t)number[n - 1];
    }
    if (error == DT_OK && ferror(f)) error = dt_fail(DT_EIO, "%s: cannot read it", path);
    fclose(f);
    return error != DT_OK || *count >= 5
               ? error
               : dt_fail(DT_EDATA, "%s holds %u rows; 5 or more are wanted", path, *count);
}

int main(int argc, char **argv) {
    dt_err error = DT_OK;
    const bool sorted = argc == 4 && strcmp(argv[2], "--classes") == 0;
    const int classes = sorted ? atoi(argv[3]) : 0;
    if (argc > 1 && ((argc != 2 && !sorted) || argv[1][0] == '-' ||
                     (sorted && (classes < 2 || classes > 256)))) {
        fprintf(stderr, "usage: vectors [file.csv [--classes 2..256]]\n");
        return 2;
    }
    if (argc > 1) {
        uint32_t count;
        int features;
        error = read_rows(argv[1], classes, &count, &features);
        if (error == DT_OK) error = learn(count, features, classes, 100);
    } else {
        draw_spirals();
        printf("two spirals   ");
        error = learn(DRAWN, 2, 2, 60);
        draw_surface();
        if (error == DT_OK) printf("a surface     ");
        if (error == DT_OK) error = learn(DRAWN, 2, 0, 60);
    }
    if (error != DT_OK) fprintf(stderr, "%s\n", dt_error());
    // a full disk behind > is an error too
    const bool told = fflush(stdout) == 0 && !ferror(stdout);
    if (!told) fprintf(stderr, "standard output: not all that was printed could be written\n");
    return error == DT_OK && told ? 0 : 1;
}
