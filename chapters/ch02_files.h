// Chapter 2's surroundings: where the two test files lie. The synthetic digits are drawn, not read:
// for them the files are written first, into a folder that goes away again.
#ifndef CH02_FILES_H
#define CH02_FILES_H

#include "chapter.h"

#include <sys/stat.h>

static void write_idx(const char *path, uint32_t magic, const uint32_t *sizes,
                      const uint8_t *data) {
    FILE *file = fopen(path, "wb");
    size_t bytes = 1, written = 0;
    for (uint32_t i = 0; file && i <= (magic & 255); ++i) {
        const uint32_t v = i == 0 ? magic : sizes[i - 1];
        const uint8_t big[4] = { (uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8),
                                 (uint8_t)v };
        if (i) bytes *= v;
        fwrite(big, 1, 4, file);
    }
    if (file) written = fwrite(data, 1, bytes, file);
    if (!file || fclose(file) != 0 || written != bytes) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

typedef struct idx_files { char folder[300], images[400], labels[400]; bool drawn; } idx_files;

// Makes a folder that was not there before, of the name's beginning and a number.
static void new_folder(char *name, size_t size, const char *beginning) {
    for (int i = 0; i < 1000; ++i) {
        snprintf(name, size, "%s%d", beginning, i);
        if (mkdir(name, 0700) == 0) return;
        if (errno != EEXIST) break;
    }
    perror(name);
    exit(1);
}

static idx_files test_files(const dt_dataset *test) {
    idx_files f = { .drawn = strncmp(test->name, "synthetic", 9) == 0 };
    const char *tmp = getenv("TMPDIR");
    char beginning[280];
    snprintf(beginning, sizeof beginning, "%s/ch02-", tmp ? tmp : "/tmp");
    if (f.drawn) new_folder(f.folder, sizeof f.folder, beginning);
    else snprintf(f.folder, sizeof f.folder, "%s", test->source);
    snprintf(f.images, sizeof f.images, "%s/t10k-images-idx3-ubyte", f.folder);
    snprintf(f.labels, sizeof f.labels, "%s/t10k-labels-idx1-ubyte", f.folder);
    if (f.drawn) {
        write_idx(f.images, 0x803, (uint32_t[3]){ test->count, 28, 28 }, test->pixels);
        write_idx(f.labels, 0x801, &test->count, test->labels);
    }
    return f;
}

static void forget_test_files(const idx_files *f) {
    if (f->drawn) { remove(f->images); remove(f->labels); remove(f->folder); }
}

#endif
