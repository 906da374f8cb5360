// The residual nets of examples/resnet9_cifar10.c and examples/wideresnet.c.
// tests/make_reference.py has them in PyTorch, under the same names, and tests/test_norm.c compares
// the two.
#ifndef MODELS_H
#define MODELS_H

#include "../dtrain.h"
#include <stdio.h>

static inline const char *model_name(char *out, size_t size, const char *of, const char *part) {
    const int n = snprintf(out, size, "%s.%s", of, part);
    return n > 0 && (size_t)n < size ? out : "";
}

// ---- Options of both programs, for chapters/options.h.

#define NORM_OPTION(value) \
    { "norm", 's', value, \
      "K   batch norm over the batch, rank or group (of 16 images); default batch" }
#define ACCUMULATE_OPTION(value) \
    { "accumulate", UP_TO(65536), value, \
      "K   a step's images in K micro-batches, for less memory and the same bits; with --norm " \
      "group" }

// ---- ResNet9: convolution, batch norm and ReLU at every step; strides shrink the map to 1 x 1.

static inline void conv_bn(dt_net *net, const char *name, int out, int kernel, int stride,
                           dt_statistics over) {
    char part[64];
    dt_conv2d(net, model_name(part, sizeof part, name, "conv"),
              &(dt_conv2d_desc){
                  .out = out, .kernel = kernel, .stride = stride, .padding = (kernel - 1) / 2 });
    dt_batchnorm2d(net, model_name(part, sizeof part, name, "bn"),
                   &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = over });
    dt_relu(net);
}

static inline dt_net *resnet9(int classes, dt_statistics over) {
    dt_net *net = dt_net_new(3, 32, 32);
    conv_bn(net, "a", 16, 7, 4, over);      // 16 x 8 x 8
    conv_bn(net, "b", 32, 3, 2, over);      // 32 x 4 x 4
    dt_node skip = dt_here(net);
    conv_bn(net, "res1.a", 32, 3, 1, over);
    conv_bn(net, "res1.b", 32, 3, 1, over);
    dt_add(net, skip);
    conv_bn(net, "c", 64, 3, 2, over);      // 64 x 2 x 2
    conv_bn(net, "d", 128, 3, 2, over);     // 128 x 1 x 1
    skip = dt_here(net);
    conv_bn(net, "res2.a", 128, 3, 1, over);
    conv_bn(net, "res2.b", 128, 3, 1, over);
    dt_add(net, skip);
    dt_linear(net, "fc1", 128);
    dt_relu(net);
    dt_linear(net, "fc2", classes);
    return net;
}

// ---- WideResNet: six blocks at three widths, maps halved by pooling between them.

static inline void cbr(dt_net *net, const char *name, int out, dt_statistics over) {
    char part[64];
    dt_conv2d(net, model_name(part, sizeof part, name, "conv"),
              &(dt_conv2d_desc){ .out = out, .kernel = 3, .padding = DT_SAME, .no_bias = true });
    dt_batchnorm2d(net, model_name(part, sizeof part, name, "bn"),
                   &(dt_batchnorm2d_desc){ DT_BATCHNORM2D_DEFAULTS, .over = over });
    dt_relu(net);
}

// Two convolutions, and beside them the input as it is, or through 1 x 1 convolutions where the
// channels change.
static inline void wide_block(dt_net *net, const char *name, int in, int out, float dropout,
                              dt_statistics over) {
    char part[64];
    const dt_node input = dt_here(net);
    cbr(net, model_name(part, sizeof part, name, "layer1"), out, over);
    dt_dropout(net, dropout);
    cbr(net, model_name(part, sizeof part, name, "layer2"), out, over);
    if (in == out) { dt_add(net, input); return; }
    const dt_node main_path = dt_here(net);
    dt_at(net, input);
    dt_conv2d(net, model_name(part, sizeof part, name, "scale"),
              &(dt_conv2d_desc){ .out = out, .kernel = 1 });
    dt_add(net, main_path);
}

// width: of the first blocks, 160 in S4; the later ones have two and four times as many channels.
// pool: of the mean at the end; 0 takes the whole map.
static inline dt_net *wide_resnet(int channels, int side, int classes, int width, int pool,
                                  float dropout, dt_statistics over) {
    dt_net *net = dt_net_new(channels, side, side);
    cbr(net, "input", 16, over);
    wide_block(net, "block1", 16, width, dropout, over);
    wide_block(net, "block2", width, width, dropout, over);
    dt_maxpool2d(net, 2);
    wide_block(net, "block3", width, 2 * width, dropout, over);
    wide_block(net, "block4", 2 * width, 2 * width, dropout, over);
    dt_maxpool2d(net, 2);
    wide_block(net, "block5", 2 * width, 4 * width, dropout, over);
    wide_block(net, "block6", 4 * width, 4 * width, dropout, over);
    dt_avgpool2d(net, &(dt_avgpool2d_desc){ .kernel = pool, .global = pool == 0 });
    dt_linear(net, "fc", classes);
    return net;
}
#endif
