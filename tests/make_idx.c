/* make_idx FOLDER TRAIN TEST: writes synthetic digits [E7.2] as the four IDX files of MNIST, for tests/test_cli.sh. */
#include <stdio.h>
#include <stdlib.h>

#ifndef DTRAIN_LINKED /* the implementation is an object of its own */
#define DTRAIN_IMPLEMENTATION
#endif
#include "dtrain.h"

static int put_number(FILE *f, uint32_t n) {
    const unsigned char b[4] = { (unsigned char)(n >> 24), (unsigned char)(n >> 16), (unsigned char)(n >> 8), (unsigned char)n };
    return fwrite(b, 1, 4, f) == 4;
}

static int write_set(const dt_dataset *d, const char *folder, const char *name) {
    char path[1024];
    const size_t pixels = (size_t)d->count * 28 * 28;
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", folder, name);
    FILE *f = fopen(path, "wb");
    int good = f && put_number(f, 0x803) && put_number(f, d->count) && put_number(f, 28) && put_number(f, 28) &&
               fwrite(d->pixels, 1, pixels, f) == pixels;
    good = f && fclose(f) == 0 && good;
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", folder, name);
    f = fopen(path, "wb");
    good = f && put_number(f, 0x801) && put_number(f, d->count) && fwrite(d->labels, 1, d->count, f) == d->count && good;
    return f && fclose(f) == 0 && good;
}

int main(int argc, char **argv) {
    dt_dataset all, train, test;
    if (argc != 4) return 2;
    const uint32_t n = (uint32_t)atoi(argv[2]), m = (uint32_t)atoi(argv[3]);
    if (dt_dataset_synthetic(&all, n + m, 2) != DT_OK || dt_dataset_view(&train, &all, 0, n) != DT_OK ||
        dt_dataset_view(&test, &all, n, m) != DT_OK || !write_set(&train, argv[1], "train") || !write_set(&test, argv[1], "t10k")) {
        fprintf(stderr, "make_idx: %s\n", dt_error());
        return 1;
    }
    dt_dataset_free(&all);
    return 0;
}
