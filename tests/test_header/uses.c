/* Declarations only, included twice: this file uses the header, implementation.c holds it. */
#include "dtrain.h"
#include "dtrain.h"

int trains(void);
int trains(void) {
    uint8_t pixels[4 * 36], labels[4];
    const float mean[1] = { 0.5f }, std[1] = { 0.25f };
    const uint32_t index[4] = { 0, 1, 2, 3 };
    double first = 0.0, last = 0.0;
    for (int i = 0; i < 4 * 36; ++i) pixels[i] = (uint8_t)(i * 97);
    for (int i = 0; i < 4; ++i) labels[i] = (uint8_t)(i % 3);
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 3, .kernel = 3 });
    dt_maxpool2d(net, 2);
    dt_relu(net);
    dt_linear(net, "fc", 3);
    if (dt_net_build(net, &(dt_build_desc){ .batch = 4, .seed = 1 }) != DT_OK) return 0;
    dt_optimizer *opt = dt_adam(net, &(dt_adam_desc){ DT_ADAM_DEFAULTS });
    const dt_batch batch = { .pixels = pixels, .labels = labels, .mean = mean, .std = std,
                             .index = index, .count = 4, .global_count = 4 };
    for (int step = 0; step < 200; ++step) {
        if (dt_net_load(net, &batch) != DT_OK || dt_forward(net) != DT_OK || dt_backward(net) != DT_OK) return 0;
        dt_optimizer_step(opt);
        const dt_score score = dt_net_score(net);
        last = dt_score_loss(&score);
        if (step == 0) first = last;
    }
    dt_optimizer_free(opt);
    dt_net_free(net);
    return last < 0.5 * first;
}
