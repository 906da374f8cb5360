// dtrain in a program of your own: no MPI, no threads, no charts, no data set. All it needs is
// dtrain.h and libm.
//
// Run     make dropin && ./dropin             or    cc -O3 -march=native -I. examples/dropin.c -lm
//
// The program's own data are two arrays: bytes (N,1,8,8) and a label for each image. Here it draws
// them: a noisy bar that lies, stands, rises or falls. The net finds out which.

#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <stdio.h>

// A program compiled with -march=native may come to a machine that lacks its instructions: before
// main, it says so.
#if defined(__GNUC__)
__attribute__((constructor)) static void ask_the_processor(void) {
    if (dt_check_processor() == DT_OK) return;
    fprintf(stderr, "%s\n", dt_error());
    _Exit(1);
}
#endif

enum { IMAGES = 6000, TRAINING = 5000, SIDE = 8, BATCH = 50, EPOCHS = 10 };

static uint8_t pixels[IMAGES][SIDE][SIDE], labels[IMAGES];

static void draw_bars(void) {
    for (uint32_t n = 0; n < IMAGES; ++n) {
        const dt_philox_block r = dt_philox(1, DT_RNG_TEST, 0, n, 0); // random bits of image n
        const int label = (int)(r.v[0] % 4), at = (int)(r.v[1] % 5) - 2;
        for (int y = 0; y < SIDE; ++y)
            for (int x = 0; x < SIDE; ++x) {
                const int from_bar[4] = { y - 3 - at, x - 3 - at, x + y - 7 - at, x - y - at };
                const uint32_t noise =
                    dt_philox(1, DT_RNG_TEST, 1, n, (uint32_t)(y * SIDE + x)).v[0] % 150;
                pixels[n][y][x] = (uint8_t)(noise + (from_bar[label] == 0 ? 100 : 0));
            }
        labels[n] = (uint8_t)label;
    }
}

// Rows first .. first+count-1 of the arrays as a data set. mean and std bring the values that the
// net sees near zero.
static float mean[] = { 0.3f }, std[] = { 0.2f };
static dt_dataset rows(uint32_t first, uint32_t count) {
    return (dt_dataset){ .name = "bars",
                         .count = count,
                         .channels = 1,
                         .height = SIDE,
                         .width = SIDE,
                         .classes = 4,
                         .mean = mean,
                         .std = std,
                         .pixels = &pixels[first][0][0],
                         .labels = labels + first };
}

static dt_err train(dt_net *net, dt_optimizer *opt, dt_batches *it) {
    for (uint32_t epoch = 0; epoch < EPOCHS; ++epoch) {
        dt_score sum = { 0, 0, 0 };
        dt_batches_begin(it, epoch);
        for (dt_batch batch; dt_batches_next(it, &batch);) {
            DT_TRY(dt_net_load(net, &batch));
            DT_TRY(dt_forward(net));
            DT_TRY(dt_backward(net));
            dt_optimizer_step(opt);
            const dt_score score = dt_net_score(net);
            dt_score_add(&sum, &score);
        }
        printf("epoch %u   loss %.4f\n", epoch + 1, dt_score_loss(&sum));
    }
    return DT_OK;
}

int main(void) {
    draw_bars();
    const dt_dataset training = rows(0, TRAINING), testing = rows(TRAINING, IMAGES - TRAINING);
    dt_net *net = dt_net_new(1, SIDE, SIDE);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 8, .kernel = 3 });
    dt_relu(net);
    dt_maxpool2d(net, 2);
    dt_linear(net, "fc", 4);
    // A builder's error waits until here. Each error below is a code; dt_error() has the sentence.
    dt_err error = dt_net_build(net, &(dt_build_desc){ .batch = BATCH, .seed = 1 });
    dt_optimizer *opt = error == DT_OK ? dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS }) : NULL;
    if (error == DT_OK && !opt) error = DT_EARG;
    dt_batches it = { .count = 0 };
    dt_score score = { 0, 0, 0 };
    if (error == DT_OK)
        error = dt_batches_init(
            &it, &training,
            &(dt_batches_desc){ .global_batch = BATCH, .seed = 1, .shuffle = true });
    if (error == DT_OK) error = train(net, opt, &it);
    if (error == DT_OK) error = dt_evaluate(net, &testing, NULL, &score);
    if (error == DT_OK)
        printf("%zu parameters; %.1f %% of %u test images are right\n", dt_net_count(net),
               100.0 * dt_score_accuracy(&score), testing.count);
    else fprintf(stderr, "%s\n", dt_error());
    // a full disk behind > is an error too
    const bool told = fflush(stdout) == 0 && !ferror(stdout);
    if (!told) fprintf(stderr, "standard output: not all that was printed could be written\n");
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error == DT_OK && told ? 0 : 1;
}
