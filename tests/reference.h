/* What the tests against PyTorch have in common: the generator and the data of make_reference.py, and the reader of the records that it
   writes. To be included behind the implementation and cmocka.h. */
#ifndef REFERENCE_H
#define REFERENCE_H

#define ok(call) do { dt_err ok_ = (call); if (ok_ != DT_OK) fail_msg("%s: %s", dt_err_name(ok_), dt_error()); } while (0)

/* ---- The generator and the data. */

enum { IMAGES = 48, BATCH = 37 };
static uint32_t next_number(uint32_t *x) { return *x = *x * 1664525u + 1013904223u; }

static uint32_t rows[IMAGES * 4];
static uint8_t pixels[IMAGES * 3 * 32 * 32], labels[IMAGES];
static const float mean[4] = { 0.45f, 0.45f, 0.45f, 0.45f }, deviation[4] = { 0.3f, 0.3f, 0.3f, 0.3f };

static void make_data(size_t image_bytes, int classes) {
    uint32_t x = 7;
    for (size_t i = 0; i < IMAGES * image_bytes; ++i) pixels[i] = (uint8_t)(next_number(&x) >> 24);
    for (size_t i = 0; i < IMAGES; ++i) labels[i] = (uint8_t)((next_number(&x) >> 24) % (uint32_t)classes);
}

static dt_batch batch_of_step(uint32_t step, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) rows[i] = (step * 7 + i * 5) % IMAGES;
    return (dt_batch){ .pixels = pixels, .labels = labels, .mean = mean, .std = deviation, .index = rows, .count = count, .global_count = count };
}

/* U(-1/sqrt(fan_in), 1/sqrt(fan_in)), the fan-in of a vector being that of the last matrix before it; batch norm's gamma one more. */
static void reference_values(dt_net *net) {
    uint32_t x = 1;
    float bound = 1.0f;
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        if (!p->trained) continue;
        const bool gamma = p->value.rank == 1 && strstr(p->name, "bn") && strstr(p->name, "weight");
        if (p->value.rank > 1) bound = 1.0f / sqrtf((float)(dt_tensor_count(&p->value) / (size_t)p->value.shape[0]));
        for (size_t k = 0; k < dt_tensor_count(&p->value); ++k)
            p->value.data[k] = (2.0f * ((float)(next_number(&x) >> 8) * 0x1p-24f) - 1.0f) * bound + (gamma ? 1.0f : 0.0f);
    }
}

/* What tests/conformance.sh makes a row of: how far we are from PyTorch, and how far we may be. */
static void conformance_row(const char *name, double difference, double bound) {
    printf("conformance %-24s largest difference %.1e, bound %.0e\n", name, difference, bound);
}

/* ---- PyTorch's numbers: the record of that name in a file, its floats in memory of malloc's. */
static float *reference(const char *path, const char *name, size_t *count) {
    FILE *f = fopen(path, "rb");
    char head[25] = { 0 };
    unsigned char n[4];
    if (!f) fail_msg("%s cannot be opened: run from the top folder", path);
    while (fread(head, 1, 24, f) == 24 && fread(n, 1, 4, f) == 4) {
        *count = (size_t)dti_get_le(n, 4);
        if (strcmp(head, name) != 0) { fseek(f, (long)(*count * 4), SEEK_CUR); continue; }
        float *values = malloc(*count * sizeof *values);
        for (size_t i = 0; i < *count; ++i) {
            unsigned char b[4];
            if (fread(b, 1, 4, f) != 4) fail_msg("%s ends early", path);
            const uint32_t bits = (uint32_t)dti_get_le(b, 4);
            memcpy(&values[i], &bits, sizeof bits);
        }
        fclose(f);
        return values;
    }
    fclose(f);
    fail_msg("%s has no \"%s\"", path, name);
    return NULL;
}
#endif
