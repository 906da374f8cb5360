// Chapter 2's surroundings: where the two test files lie. The synthetic digits are drawn, not read: for them the files are
// written first, into a folder that goes away again.
#ifndef CH02_FILES_H
#define CH02_FILES_H

#include "chapter.h"

static void write_idx(const char *path, uint32_t magic, const uint32_t *sizes, const uint8_t *data) {
    FILE *file = fopen(path, "wb");
    size_t bytes = 1, written = 0;
    for (uint32_t i = 0; file && i <= (magic & 255); ++i) {
        const uint32_t v = i == 0 ? magic : sizes[i - 1];
        const uint8_t big[4] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v };
        if (i) bytes *= v;
        fwrite(big, 1, 4, file);
    }
    if (file) written = fwrite(data, 1, bytes, file);
    if (!file || fclose(file) != 0 || written != bytes) { fprintf(stderr, "%s: cannot be written\n", path); exit(1); }
}

typedef struct idx_files { char folder[300], images[400], labels[400]; bool drawn; } idx_files;

static idx_files test_files(const dt_dataset *test) {
    idx_files f = { .drawn = strncmp(test->name, "synthetic", 9) == 0 };
    const char *tmp = getenv("TMPDIR");
    snprintf(f.folder, sizeof f.folder, "%s%s", f.drawn ? (tmp ? tmp : "/tmp") : test->source, f.drawn ? "/ch02-XXXXXX" : "");
    if (f.drawn && !mkdtemp(f.folder)) { perror(f.folder); exit(1); }
    snprintf(f.images, sizeof f.images, "%s/t10k-images-idx3-ubyte", f.folder);
    snprintf(f.labels, sizeof f.labels, "%s/t10k-labels-idx1-ubyte", f.folder);
    if (f.drawn) {
        write_idx(f.images, 0x803, (uint32_t[3]){ test->count, 28, 28 }, test->pixels);
        write_idx(f.labels, 0x801, &test->count, test->labels);
    }
    return f;
}

static void forget_test_files(const idx_files *f) {
    if (f->drawn) { unlink(f->images); unlink(f->labels); rmdir(f->folder); }
}

#endif
