/* Faults: the n-th request for memory fails, for every n; the n-th call of the system fails, is short, or finds the file changed, for
   every n and every such call; and places that are no plain file, that are full, or that are not there. Each time: an error with one
   sentence, no memory and no open file left behind, the old file or the new one and never half of one, and the same call works again.

   The header is compiled into this program with its calls redirected: DT_MALLOC counts, and fopen makes streams (fopencookie) whose
   reads and writes pass through here, as open, fsync, rename and the rest do. What is injected is so what the C library would meet. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Memory. Ranks are threads, so the counts are atomic. */
static atomic_long requests, fail_at, live, bytes_now, bytes_most;
static void *counted_malloc(size_t bytes) {
    const long n = ++requests;
    if (n == fail_at) return NULL;
    void *p = malloc(bytes);
    live += p != NULL;
    const long now = bytes_now += p ? (long)malloc_usable_size(p) : 0;
    if (now > bytes_most) bytes_most = now;
    return p;
}
static void counted_free(void *p) {
    live -= p != NULL;
    bytes_now -= p ? (long)malloc_usable_size(p) : 0;
    free(p);
}
#define DT_MALLOC(bytes) counted_malloc(bytes)
#define DT_FREE(pointer) counted_free(pointer)

/* ---- Calls. fault: an errno; or a short read or write, an end of file that comes too soon, a file that is cut while it is read. */
enum { SHORT = -1, END = -2, CUT = -3 };
static int calls, call_at, fault;
static bool hit, only_data;                     /* SHORT, END, CUT: only reads and writes are counted */
static const char *hit_call, *cut_path;

static bool fails(const char *call, bool data) {
    if (!call_at || (only_data && !data) || ++calls != call_at) return false;
    hit = true, hit_call = call;
    if (fault > 0) errno = fault;
    return true;
}

typedef struct fault_stream { int fd; FILE *file; } fault_stream;
static fault_stream streams[16];

static ssize_t stream_read(void *cookie, char *to, size_t size) {
    if (fails("read", true)) {
        if (fault > 0) return -1;
        if (fault == END) return 0;
        if (fault == CUT && truncate(cut_path, 40) != 0) return -1;
        if (fault == SHORT) size = (size + 1) / 2;
    }
    return read(((fault_stream *)cookie)->fd, to, size);
}
/* As glibc's own: goes on after a short write, and gives up at an error. */
static ssize_t stream_write(void *cookie, const char *from, size_t size) {
    size_t done = 0;
    while (done < size) {
        size_t n = size - done;
        if (fails("write", true)) {
            if (fault > 0) break;
            if (fault == SHORT) n = (n + 1) / 2;
        }
        const ssize_t k = write(((fault_stream *)cookie)->fd, from + done, n);
        if (k < 0) break;
        done += (size_t)k;
    }
    return (ssize_t)done;
}
static int stream_seek(void *cookie, off64_t *at, int from) {
    if (fails("lseek", false)) return -1;
    const off_t place = lseek(((fault_stream *)cookie)->fd, (off_t)*at, from);
    if (place < 0) return -1;
    *at = place;
    return 0;
}
static int stream_close(void *cookie) {
    fault_stream *s = cookie;
    const bool broken = fails("close", false);  /* as Linux does it: the descriptor is gone all the same */
    const int fd = s->fd, why = errno;
    s->file = NULL;
    if (close(fd) != 0) return -1;
    errno = why;
    return broken ? -1 : 0;
}
static FILE *stream_of(int fd, const char *mode) {
    const cookie_io_functions_t io = { stream_read, stream_write, stream_seek, stream_close };
    for (size_t i = 0; i < sizeof streams / sizeof *streams; ++i)
        if (!streams[i].file) {
            streams[i].fd = fd;
            return streams[i].file = fopencookie(&streams[i], mode, io);
        }
    abort();
}
static FILE *f_fopen(const char *path, const char *mode) {
    if (fails("open", false)) return NULL;
    const int flags = *mode == 'r' ? O_RDONLY : O_WRONLY | O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
    const int fd = open(path, flags | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : stream_of(fd, mode);
}
static FILE *f_fdopen(int fd, const char *mode) { return fails("fdopen", false) ? NULL : stream_of(fd, mode); }
static int f_fileno(FILE *f) {
    for (size_t i = 0; i < sizeof streams / sizeof *streams; ++i)
        if (streams[i].file == f) return streams[i].fd;
    return fileno(f);
}
static int f_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails("open", false) ? -1 : open(path, flags, mode);
}
static int f_fsync(int fd) { return fails("fsync", false) || fcntl(fd, F_GETFD) < 0 ? -1 : 0; } /* no disk is waited for: thousands of times */
static int f_rename(const char *a, const char *b) { return fails("rename", false) ? -1 : rename(a, b); }
static int f_stat(const char *path, struct stat *s) { return fails("stat", false) ? -1 : stat(path, s); }
static int f_fstat(int fd, struct stat *s) { return fails("fstat", false) ? -1 : fstat(fd, s); }
static int f_fchmod(int fd, mode_t mode) { return fails("fchmod", false) ? -1 : fchmod(fd, mode); }
static int f_access(const char *path, int mode) { return fails("access", false) ? -1 : access(path, mode); }

#define fopen(path, mode) f_fopen(path, mode)
#define fdopen(fd, mode) f_fdopen(fd, mode)
#define fileno(file) f_fileno(file)
#define open(...) f_open(__VA_ARGS__)
#define fsync(fd) f_fsync(fd)
#define rename(a, b) f_rename(a, b)
#define stat(path, s) f_stat(path, s)
#define fstat(fd, s) f_fstat(fd, s)
#define fchmod(fd, mode) f_fchmod(fd, mode)
#define access(path, mode) f_access(path, mode)

#define DTRAIN_WITH_THREADS
#define DTRAIN_WITH_CHARTS
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#undef fopen
#undef fdopen
#undef open
#undef fsync
#undef rename
#undef stat
#undef access

#define ok(call) do { dt_err ok_ = (call); if (ok_ != DT_OK) fail_msg("line %d: %s: %s", __LINE__, dt_err_name(ok_), dt_error()); } while (0)

/* ---- What is worked with: 40 images of 6 x 6, and a net with a layer of each fault. */
enum { COUNT = 40, MORE = 20, SIDE = 6, CLASSES = 3 };
static uint8_t pixels[COUNT * SIDE * SIDE], labels[COUNT], more_labels[MORE];
static float mean[1] = { 0.5f }, deviation[1] = { 0.25f };
static const dt_dataset data = { .name = "noise", .count = COUNT, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES, .mean = mean,
                                 .std = deviation, .pixels = pixels, .labels = labels },
                        checked = { .name = "more", .count = MORE, .channels = 1, .height = SIDE, .width = SIDE, .classes = CLASSES, .mean = mean,
                                    .std = deviation, .pixels = pixels, .labels = more_labels };
static dt_net *net;
static dt_optimizer *opt;
static dt_batches it;

static dt_net *layers(bool all) {
    dt_net *n = dt_net_new(1, SIDE, SIDE);
    dt_conv2d(n, "conv", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1 });
    if (all) {
        dt_batchnorm2d(n, "bn", NULL);
        const dt_node here = dt_here(n);
        dt_relu(n);
        dt_conv2d(n, "conv2", &(dt_conv2d_desc){ .out = 4, .kernel = 3, .padding = 1 });
        dt_add(n, here);
        dt_sigmoid(n);
        dt_avgpool2d(n, &(dt_avgpool2d_desc){ .kernel = 2 });
        dt_dropout2d(n, 0.1f);
    } else dt_maxpool2d(n, 2);
    dt_tanh(n);
    dt_dropout(n, 0.2f);
    dt_linear(n, "fc", CLASSES);
    return n;
}

static dt_err make(dt_net **n, bool all) {
    *n = layers(all);
    const dt_err error = dt_net_build(*n, &(dt_build_desc){ .batch = 32, .seed = 1 });
    if (error != DT_OK) dt_net_free(*n), *n = NULL;
    return error;
}

/* ---- Deeds: what is done again and again, each time with another fault. Each cleans up behind itself. */

static dt_err does_build(void) {
    dt_net *n;
    dt_err error = make(&n, true);
    if (error == DT_OK) error = dt_net_profile(n, true);
    const uint32_t index[4] = { 0, 1, 2, 3 };
    const dt_batch batch = { .pixels = pixels, .labels = labels, .mean = mean, .std = deviation, .index = index, .count = 4, .global_count = 4 };
    if (error == DT_OK) error = dt_net_load(n, &batch);
    if (error == DT_OK) error = dt_forward(n);
    if (error == DT_OK) error = dt_backward(n);
    dt_net_free(n);
    return error;
}
static dt_err does_clone(void) {
    dt_net *twin = dt_net_clone(net);
    dt_optimizer *other = twin ? dt_optimizer_clone(opt, twin) : NULL;
    const dt_err error = twin && other ? DT_OK : DT_ENOMEM;
    dt_optimizer_free(other);
    dt_net_free(twin);
    return error;
}
static dt_err does_optimizers(void) {
    dt_optimizer *o[4] = { NULL };
    const dt_adam_desc adam = dt_adam_defaults(), adamw = dt_adamw_defaults();
    const dt_novograd_desc novograd = dt_novograd_defaults();
    dt_err error = (o[0] = dt_sgd(net, &(dt_sgd_desc){ .lr = 0.1f, .momentum = 0.5f })) && (o[1] = dt_adam(net, &adam)) &&
                           (o[2] = dt_adamw(net, &adamw)) && (o[3] = dt_novograd(net, &novograd)) ? DT_OK : DT_ENOMEM;
    if (error == DT_OK) error = dt_optimizer_group(o[2], &(dt_group_desc){ .names = "*.bias" });
    for (int i = 0; i < 4; ++i) dt_optimizer_free(o[i]);
    return error;
}
static dt_err does_arrays(void) {
    dt_dataset d;
    const dt_err error = dt_dataset_from(&d, &(dt_arrays){ .count = COUNT, .channels = 1, .height = SIDE, .width = SIDE, .pixels = pixels, .labels = labels,
                                                           .classes = CLASSES });
    dt_dataset_free(&d);
    return error;
}
static dt_err does_digits(void) {
    dt_dataset d;
    const dt_err error = dt_dataset_synthetic(&d, 20, 1);
    dt_dataset_free(&d);
    return error;
}
static dt_err does_idx(void) {
    dt_dataset d;
    dt_err error = dt_idx_load(&d, "images", "labels", CLASSES);
    if (error == DT_OK && (d.count != COUNT || memcmp(d.pixels, pixels, sizeof pixels) != 0 || memcmp(d.labels, labels, COUNT) != 0))
        fail_msg("IDX: other images than the file's");
    dt_dataset_free(&d);
    return error;
}
static dt_err does_cifar(void) {
    dt_dataset d;
    const char *const paths[2] = { "cifar", "cifar" };
    dt_err error = dt_cifar10_load(&d, paths, 2);
    if (error == DT_OK && (d.count != 4 || d.labels[1] != 7 || d.pixels[DTI_CIFAR_PIXELS] != 9)) fail_msg("CIFAR-10: other images than the file's");
    dt_dataset_free(&d);
    return error;
}
static dt_err does_batches(void) {
    dt_batches b;
    dt_sampler s;
    const dt_augment augment = { .seed = 2, .flip = 0.5f, .rotate = 10.0f };
    dt_err error = dt_batches_init(&b, &data, &(dt_batches_desc){ .global_batch = 8, .shuffle = true, .augment = &augment });
    if (error == DT_OK) dt_batches_free(&b);
    if (error == DT_OK && (error = dt_sampler_init(&s, &(dt_sampler_desc){ .count = COUNT, .ranks = 2, .shuffle = true })) == DT_OK) dt_sampler_free(&s);
    return error;
}
static dt_err does_predict(void) {
    float out[COUNT * CLASSES];
    dt_score score;
    const dt_err error = dt_predict(net, &data, 0, COUNT, out);
    return error == DT_OK ? dt_evaluate(net, &checked, NULL, &score) : error;
}
static dt_err does_save(void) { return dt_save(net, "saved"); }
static dt_err does_load(void) { return dt_load(net, "kept.safetensors"); }
static const dt_checkpoint *place(void) {
    static dt_checkpoint at;
    at = (dt_checkpoint){ .net = net, .opt = opt, .it = &it, .settings = "--lr: 1\n", .epoch = 1, .step = 1 };
    return &at;
}
static dt_err does_checkpoint(void) { return dt_checkpoint_save(place(), "saved"); }
static dt_err does_resume(void) {
    dt_checkpoint at = *place();
    at.epoch = at.step = 0;
    const dt_err error = dt_checkpoint_load(&at, NULL, "kept.checkpoint");
    if (error == DT_OK && (at.epoch != 1 || at.step != 1)) fail_msg("the checkpoint stands elsewhere");
    return error;
}
static dt_err does_row(void) { return dt_csv_append("saved", "a,b", "%d,%d", 3, 4); }
static dt_err does_trace(void) {
    dt_comm *comm = dt_comm_alone();
    dt_err error = comm ? dt_trace_start(comm, 16) : DT_ENOMEM;
    if (error == DT_OK) dt_trace(comm, "work", 1.0, 2.0), error = dt_trace_write(comm, "trace");
    dt_comm_free(comm);
    return error;
}
static dt_comm *traced;                         /* whose trace is the same each time */
static dt_err does_trace_write(void) { return dt_trace_write(traced, "saved"); }
static const double four[4] = { 1, 2, 3, 4 };
static dt_chart *chart(void) {
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "Two lines, and a title that is long enough to be wrapped into a second line of the chart", .subtitle = "made",
                                                 .x_label = "x", .y_label = "y", .caption = "here", .width = 500, .height = 300 });
    dt_chart_line(c, &(dt_series){ .label = "a", .n = 4, .x = four, .y = four, .y_min = four, .y_max = four });
    dt_chart_line(c, &(dt_series){ .label = "b", .n = 4, .x = four, .y = (const double[]){ 4, 3, 2, 1 }, .style = DT_LINE_POINTS });
    dt_chart_reference(c, &(dt_reference){ .label = "ideal", .slope = 1 });
    return c;
}
static dt_err does_chart(void) {
    dt_chart *c = chart();
    const dt_err error = dt_chart_write(c, "saved");
    dt_chart_free(c);
    return error;
}
static dt_err does_chart_csv(void) {
    dt_chart *c = chart();
    const dt_err error = dt_chart_write_csv(c, "saved");
    dt_chart_free(c);
    return error;
}
static dt_err does_other_charts(void) {
    dt_chart *c = dt_chart_new(NULL);
    dt_chart_bars(c, &(dt_bars){ .groups = 2, .series = 2, .names = (const char *const[]){ "p", "q" }, .labels = (const char *const[]){ "r", "s" }, .y = four });
    dt_err error = dt_chart_check(c);
    dt_chart_free(c);
    if (error == DT_OK) {
        c = dt_chart_new(NULL);
        dt_chart_histogram(c, &(dt_histogram){ .n = 4, .values = four });
        error = dt_chart_check(c);
        dt_chart_free(c);
    }
    if (error == DT_OK) {
        c = dt_chart_new(NULL);
        dt_chart_images(c, &(dt_images){ .n = 4, .width = SIDE, .height = SIDE, .pixels = pixels });
        error = dt_chart_check(c);
        dt_chart_free(c);
    }
    return error;
}
static dt_err does_lane_conv(void) {
    float w[4 * 3 * 9] = { 0 };
    dt_lane_conv *c = dt_lane_conv_new(3, 8, 8, 4, 3, 4);
    const dt_err error = c ? dt_lane_conv_pack(c, w) : DT_ENOMEM;
    dt_lane_conv_free(c);
    return error;
}
static dt_err does_doctor(void) {
    char text[2048];
    dt_comm *comm = dt_comm_alone();
    const dt_err error = comm ? dt_comm_doctor(comm, &(dt_doctor_desc){ .program = "./x", .lane_groups = 8, .settings = "--lr 1\n" }, text, sizeof text) : DT_ENOMEM;
    dt_comm_free(comm);
    return error;
}
static dt_err sums(dt_comm *comm, void *arg) {
    float x[300] = { 1.0f };
    (void)arg;
    for (dt_algorithm a = DT_AUTO; a < DT_ALGORITHMS; ++a)
        if (a != DT_MPI) DT_TRY(dt_allreduce(comm, x, 300, DT_F32, DT_SUM, a));
    return DT_OK;
}
static dt_err does_ranks(void) { return dt_run_ranks(3, sums, NULL); }

/* Training ends well where no checkpoint can be written, and complains: that counts as the error here. */
static atomic_bool complained;
static bool listen(const dt_progress *p, void *user) {
    (void)user;
    if (p->complaint) complained = true;
    return true;
}
static const dt_outer_desc diloco = { DT_DILOCO_DEFAULTS };
static const dt_schedule fall = { .curve = DT_LR_COSINE, .by_step = true, .over = 9, .end = 0.001f };
static dt_err trains(const char *method, int threads, bool all) {
    dt_net *n;
    dt_train_result r = { .seconds = 0.0 };
    dt_hogwild_result h;
    DT_TRY(make(&n, all));
    dt_optimizer *o = dt_sgd(n, &(dt_sgd_desc){ .lr = 0.01f, .momentum = 0.5f });
    dt_err error = o ? DT_OK : DT_ENOMEM;
    dt_train_desc d = { .data = &data, .epochs = 2, .batch = 16, .seed = 3, .threads = threads, .validation = &checked, .schedule = &fall, .on_step = listen };
    complained = false;
    if (error == DT_OK && *method == 'h') d.validation = NULL, error = dt_train_hogwild(n, o, threads, &d, &h);
    else if (error == DT_OK) {
        d.checkpoint = "run.checkpoint", d.checkpoint_every = 2;
        d.outer = *method == 'p' ? &diloco : NULL, d.average_every = *method == 'p' ? 2 : 0;
        error = (*method == 'p' ? dt_train_psgd : dt_train_sync)(n, o, NULL, &d, &r);
        d.checkpoint = NULL, d.resume = "run.checkpoint";
        complained = complained || *r.complaint;
        if (error == DT_OK && complained) error = DT_ENOMEM;
        else if (error == DT_OK) error = (*method == 'p' ? dt_train_psgd : dt_train_sync)(n, o, NULL, &d, &r);
    }
    dt_optimizer_free(o);
    dt_net_free(n);
    return error;
}
static dt_err does_sync(void) { return trains("sync", 1, true); }
static dt_err does_psgd(void) { return trains("psgd", 1, false); }
static dt_err does_sync_threads(void) { return trains("sync", 3, true); }
static dt_err does_psgd_threads(void) { return trains("psgd", 3, false); }
static dt_err does_hogwild(void) { return trains("hogwild", 3, false); }

typedef struct deed {
    const char *name;
    dt_err (*does)(void);
    const char *reads, *writes;                 /* files: that must be there before; that may not be left half */
    bool in_place;                              /* what was written stays in front of what is */
} deed;
static const deed deeds[] = {
    { "building a net, a step", does_build, NULL, NULL, false },
    { "copies of a net, an optimizer", does_clone, NULL, NULL, false },
    { "optimizers, a group", does_optimizers, NULL, NULL, false },
    { "a set over arrays", does_arrays, NULL, NULL, false },
    { "synthetic digits", does_digits, NULL, NULL, false },
    { "IDX files", does_idx, "images", NULL, false },
    { "CIFAR-10 files", does_cifar, "cifar", NULL, false },
    { "batches, a sampler", does_batches, NULL, NULL, false },
    { "predicting, evaluating", does_predict, NULL, NULL, false },
    { "dt_save", does_save, NULL, "saved", false },
    { "dt_load", does_load, "kept.safetensors", NULL, false },
    { "dt_checkpoint_save", does_checkpoint, NULL, "saved", false },
    { "dt_checkpoint_load", does_resume, "kept.checkpoint", NULL, false },
    { "a row of a CSV", does_row, NULL, "saved", true },
    { "a trace, its room", does_trace, NULL, NULL, false },
    { "a trace", does_trace_write, NULL, "saved", false },
    { "a chart as PNG", does_chart, NULL, "saved", false },
    { "a chart's CSV", does_chart_csv, NULL, "saved.csv", false },
    { "bars, a histogram, pictures", does_other_charts, NULL, NULL, false },
    { "a convolution of one's choice", does_lane_conv, NULL, NULL, false },
    { "the doctor", does_doctor, NULL, NULL, false },
    { "three ranks, every all-reduce", does_ranks, NULL, NULL, false },
    { "synchronous SGD, checkpoints, resumed", does_sync, NULL, NULL, false },
    { "PSGD, outer momentum, the same", does_psgd, NULL, NULL, false },
    { "synchronous SGD on 3 threads", does_sync_threads, NULL, NULL, false },
    { "PSGD on 3 threads", does_psgd_threads, NULL, NULL, false },
    { "Hogwild, 3 workers", does_hogwild, NULL, NULL, false },
};
enum { DEEDS = sizeof deeds / sizeof *deeds };

/* ---- What is looked at after each. */

static int entries(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d)) ++n;
    if (d) closedir(d);
    return n;
}
static unsigned char content[2][1 << 20];
static size_t contents(const char *path, int which) {
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(content[which], 1, sizeof content[which], f) : 0;
    if (f) fclose(f);
    return n;
}
static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s: %s", path, strerror(errno));
}
static void one_sentence(const char *name, const char *what, dt_err error) {
    if (error == DT_OK || strstr(dt_error(), "nothing was said") || !*dt_error() || strchr(dt_error(), '\n'))
        fail_msg("%s: %s: %s, \"%s\"", name, what, dt_err_name(error), dt_error());
}

/* ---- The n-th request for memory. */

static void memory_fails(void **state) {
    (void)state;
    int cases = 0;
    for (const deed *d = deeds; d < deeds + DEEDS; ++d) {
        const uint64_t hash = dt_net_hash(net);
        remove("saved");
        ok(d->does());
        for (int n = 1;; ++n) {
            char what[64];
            const long before = live;
            snprintf(what, sizeof what, "request %d", n);
            requests = 0;
            fail_at = n;
            dt_fail(DT_OK, "nothing was said");
            const dt_err error = d->does();
            const bool reached = requests >= fail_at;
            fail_at = 0;
            if (live != before) fail_msg("%s: %s: %ld blocks are left", d->name, what, live - before);
            if (dt_net_hash(net) != hash) fail_msg("%s: %s: the net has changed", d->name, what);
            if (!reached) { ok(error); break; }
            one_sentence(d->name, what, error);
            ++cases;
        }
        ok(d->does());
    }
    printf("memory: %d deeds, %d requests that failed\n", DEEDS, cases);
    assert_true(cases > 300);
}

/* ---- The n-th call. */

static const struct { int fault; const char *name; } kinds[] = {
    { EIO, "EIO" }, { ENOSPC, "ENOSPC" }, { EINTR, "EINTR" }, { EMFILE, "EMFILE" }, { EACCES, "EACCES" }, { SHORT, "short" }, { END, "end" }, { CUT, "cut" },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void before_deed(const deed *d, const char *old, size_t n) {
    remove("saved"), remove("saved.csv");
    if (d->writes) write_file(d->writes, old, n);
}

/* One deed, its call_at-th call with this fault; false: it has not so many calls. */
static bool one_fault(const deed *d, int k, int at, const char *old, size_t old_n, size_t whole_n) {
    char what[80];
    const uint64_t hash = dt_net_hash(net);
    const long blocks = live;
    before_deed(d, old, old_n);
    const int files = entries("."), handles = entries("/proc/self/fd");
    const size_t kept = d->reads ? contents(d->reads, 1) : 0;
    dt_fail(DT_OK, "nothing was said");
    calls = 0, call_at = at, hit = false, fault = kinds[k].fault, only_data = fault < 0, cut_path = d->reads;
    const dt_err error = d->does();
    call_at = 0;
    snprintf(what, sizeof what, "%s at call %d, %s", kinds[k].name, at, hit_call);
    if (!hit) { ok(error); return false; }
    if (entries("/proc/self/fd") != handles) fail_msg("%s: %s: a file is left open", d->name, what);
    if (entries(".") != files) fail_msg("%s: %s: a file is left", d->name, what);
    if (live != blocks) fail_msg("%s: %s: memory is left", d->name, what);
    if (dt_net_hash(net) != hash) fail_msg("%s: %s: the net has changed", d->name, what);
    if (error != DT_OK) one_sentence(d->name, what, error);
    if (d->writes) { /* content[0]: as it should be */
        const size_t n = contents(d->writes, 1);
        const bool is_new = n == whole_n && memcmp(content[0], content[1], n) == 0, is_old = n == old_n && memcmp(content[1], old, n) == 0;
        const bool begins = d->in_place && n >= old_n && memcmp(content[1], content[0], n) == 0;
        if (error == DT_OK ? !is_new : !is_new && !is_old && !begins) fail_msg("%s: %s: %s, and the file has %zu bytes", d->name, what, dt_err_name(error), n);
    } else if (fault == CUT) write_file(d->reads, content[1], kept);
    if (fault == SHORT && error != DT_OK) fail_msg("%s: %s: %s", d->name, what, dt_error());
    return true;
}

static void calls_fail(void **state) {
    (void)state;
    int cases = 0, bad = 0;
    for (const deed *d = deeds; d < deeds + DEEDS; ++d) {
        if (!d->reads && !d->writes) continue;
        const char *old = d->in_place ? "a,b\n1,2\n" : "the old file\n";
        before_deed(d, old, strlen(old));
        ok(d->does());
        const size_t whole = d->writes ? contents(d->writes, 0) : 0;
        for (int k = 0; k < KINDS; ++k) {
            if (d->writes && (kinds[k].fault == END || kinds[k].fault == CUT)) continue;
            int at = 1;
            while (one_fault(d, k, at, old, strlen(old), whole)) ++at;
            cases += at - 1;
        }
        before_deed(d, old, strlen(old));
        ok(d->does());
        ++bad;
    }
    printf("calls: %d deeds, %d faults\n", bad, cases);
    assert_true(cases > 300);
}

/* ---- Places. */

static void another_place(const deed *d, const char *path, const char *what) {
    char away[64];
    const char *file = d->reads ? d->reads : d->writes;
    const uint64_t hash = dt_net_hash(net);
    const int handles = entries("/proc/self/fd");
    snprintf(away, sizeof away, "%s.away", file);
    remove(away);
    if (rename(file, away) != 0 && d->reads) fail_msg("%s: %s", file, strerror(errno));
    if (path && symlink(path, file) != 0) fail_msg("%s: %s", file, strerror(errno));
    dt_fail(DT_OK, "nothing was said");
    alarm(20); /* to open a pipe may wait for ever */
    const dt_err error = d->does();
    alarm(0);
    one_sentence(d->name, what, error);
    assert_int_equal(dt_net_hash(net), hash);
    assert_int_equal(entries("/proc/self/fd"), handles);
    remove(file);
    if (d->reads) assert_int_equal(rename(away, file), 0);
}

static void places(void **state) {
    (void)state;
    int cases = 0;
    struct stat s;
    assert_int_equal(mkfifo("pipe", 0600) | mkdir("folder", 0700), 0);
    write_file("empty", "", 0);
    const bool full = stat("/dev/full", &s) == 0;
    for (const deed *d = deeds; d < deeds + DEEDS; ++d) {
        if (!d->reads && !d->writes) continue;
        remove("saved");
        another_place(d, "folder", "a folder"), another_place(d, "pipe", "a pipe"), another_place(d, "/nowhere/x", "a missing folder");
        cases += 3;
        if (d->reads) another_place(d, "/dev/zero", "a device"), another_place(d, "empty", "an empty file"), another_place(d, NULL, "no file"), cases += 3;
        else if (full) another_place(d, "/dev/full", "a full device"), ++cases;
    }
    printf("places: %d\n", cases);
}

/* A file may not become longer than so many bytes: as on a full disk, by the system itself. The old file stays. */
static void limits(void **state) {
    (void)state;
    int cases = 0;
    struct rlimit had, now;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (const deed *d = deeds; d < deeds + DEEDS; ++d) {
        if (!d->writes) continue;
        const char *old = d->in_place ? "a,b\n1,2\n" : "the old file\n";
        before_deed(d, old, strlen(old));
        ok(d->does());
        const size_t whole = contents(d->writes, 0);
        for (int part = 0; part < 4; ++part) {
            const size_t room = d->in_place ? strlen(old) + (size_t)part : (size_t)part * (whole - 1) / 3;
            before_deed(d, old, strlen(old));
            const int files = entries(".");
            now = had, now.rlim_cur = room;
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
            dt_fail(DT_OK, "nothing was said");
            const dt_err error = d->does();
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
            one_sentence(d->name, "a limit of the file's size", error);
            const size_t n = contents(d->writes, 1);
            assert_true(d->in_place ? n >= strlen(old) && memcmp(content[0], content[1], n) == 0 : n == strlen(old) && memcmp(content[1], old, n) == 0);
            assert_int_equal(entries("."), files);
            ++cases;
        }
    }
    printf("limits of a file's size: %d\n", cases);
}

/* A disk of 64 KiB, which a file fills, where this process may mount one; and a folder that may only be read, for who is not root. */
static void full_disk(void **state) {
    (void)state;
    assert_int_equal(mkdir("disk", 0700), 0);
    if (mount("none", "disk", "tmpfs", 0, "size=64k") != 0) {
        printf("skipped: a full disk (this process may not mount one: %s)\n", strerror(errno));
        return;
    }
    char *plug = calloc(1, 60 << 10);
    write_file("disk/plug", plug, 60 << 10);
    free(plug);
    write_file("disk/old", "the old file\n", 13);
    const int files = entries("disk");
    dt_err error = DT_OK;
    size_t n = 0;
    int cases = 0;
    for (const deed *d = deeds; d < deeds + DEEDS; ++d) {
        if (!d->writes || d->in_place) continue;
        remove(d->writes);
        assert_int_equal(symlink("disk/old", d->writes), 0);
        dt_fail(DT_OK, "nothing was said");
        error = d->does();
        remove(d->writes);
        n = contents("disk/old", 1);
        if (entries("disk") != files) break;
        if (error == DT_OK && n != 13) { write_file("disk/old", "the old file\n", 13); continue; } /* so small that it fits */
        if (n != 13 || memcmp(content[1], "the old file\n", n) != 0 || error == DT_OK || !strstr(dt_error(), "No space left")) break;
        ++cases;
    }
    const int left = entries("disk");
    (void)umount("disk");
    if (left != files) fail_msg("a file is left on a full disk");
    if (n != 13 && error != DT_OK) fail_msg("a full disk: %s, \"%s\", and the old file has %zu bytes", dt_err_name(error), dt_error(), n);
    assert_true(cases >= 2);
    printf("a full disk: %d\n", cases);
}

static void read_only_folder(void **state) {
    (void)state;
    assert_int_equal(mkdir("closed", 0755), 0);
    write_file("closed/old", "the old file\n", 13);
    assert_int_equal(chmod("closed/old", 0444) | chmod("closed", 0555), 0);
    const pid_t child = fork(); /* as somebody who may not */
    if (child == 0) {
        if (geteuid() == 0 && (chmod(".", 0755) != 0 || setuid(65534) != 0)) _exit(77);
        int bad = 0;
        dt_fail(DT_OK, "nothing was said");
        for (int i = 0; i < 2; ++i) { /* a new file; one that is there */
            const char *path = i ? "closed/old" : "closed/new";
            bad += dt_save(net, path) != DT_EIO || !strstr(dt_error(), "Permission denied");
            bad += dt_checkpoint_save(place(), path) != DT_EIO || !strstr(dt_error(), "Permission denied");
            bad += dt_csv_append(path, "a", "%d", 1) == DT_OK;
            bad += dt_check_writable(path) != DT_EIO;
        }
        _exit(bad);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod("closed", 0755), 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) printf("skipped: a folder that may only be read\n");
    else assert_int_equal(status, 0);
    assert_int_equal(contents("closed/old", 1), 13);
    assert_int_equal(entries("closed"), 3);
}

/* ---- No file makes a reader ask for much more than it is long: whatever it claims, the memory in use at once stays below a stated
   multiple of the file's bytes and what the reader takes for an empty one. */

static const struct { const char *name, *file; dt_err (*does)(void); long factor; size_t header; } readers[] = {
    { "IDX images", "images", does_idx, 1, 16 }, { "IDX labels", "labels", does_idx, 1, 8 }, { "CIFAR-10", "cifar", does_cifar, 2, 600 }, /* the file is given twice */
    { "dt_load", "kept.safetensors", does_load, 1, 600 }, { "dt_checkpoint_load", "kept.checkpoint", does_resume, 3, 600 },
};

static long taken_by(const char *file, dt_err (*does)(void), const void *bytes, size_t n) {
    write_file(file, bytes, n);
    const long before = bytes_now;
    bytes_most = before;
    const dt_err error = does();
    if (error != DT_OK && (!*dt_error() || strchr(dt_error(), '\n'))) fail_msg("%s: no sentence", file);
    return bytes_most - before;
}

static void huge_claims(void **state) {
    (void)state;
    enum { ROOM = 1024 }; /* what alignment and the allocator add */
    const uint64_t hash = dt_net_hash(net);
    int cases = 0;
    for (size_t r = 0; r < sizeof readers / sizeof *readers; ++r) {
        const size_t n = contents(readers[r].file, 0);
        const long base = taken_by(readers[r].file, readers[r].does, "", 0) + ROOM + (r < 2 ? (long)(sizeof pixels + COUNT) : 0);
        long most = 0;
        for (size_t at = 0; at < n && at < readers[r].header; ++at)
            for (int kind_of = 0; kind_of < 4; ++kind_of) { /* large, larger, and both where the file ends soon */
                const size_t size = kind_of < 2 ? n : dti_min_size(n, at + 24);
                memcpy(content[1], content[0], n);
                memset(content[1] + at, kind_of % 2 ? 0xff : 0x39, dti_min_size(8, readers[r].header - at)); /* "9" */
                const long took = taken_by(readers[r].file, readers[r].does, content[1], size);
                if (took > readers[r].factor * (long)size + base)
                    fail_msg("%s: %zu bytes, of which byte %zu claims much, take %ld", readers[r].name, size, at, took);
                most = took > most ? took : most;
                ++cases;
            }
        write_file(readers[r].file, content[0], n);
        printf("%s: %zu bytes, at most %ld taken\n", readers[r].name, n, most);
        ok(readers[r].does());
    }
    assert_int_equal(dt_net_hash(net), hash);
    printf("claims: %d\n", cases);
}

/* ---- */

static void make_files(void) {
    unsigned char head[16] = { 0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, SIDE, 0, 0, 0, SIDE }, bytes[16 + sizeof pixels], names[8 + COUNT];
    memcpy(bytes, head, 16), memcpy(bytes + 16, pixels, sizeof pixels);
    write_file("images", bytes, sizeof bytes);
    head[3] = 1;
    memcpy(names, head, 8), memcpy(names + 8, labels, COUNT);
    write_file("labels", names, sizeof names);
    unsigned char *cifar = calloc(2, DTI_CIFAR_RECORD);
    cifar[DTI_CIFAR_RECORD] = 7, cifar[DTI_CIFAR_RECORD + 1] = 9;
    write_file("cifar", cifar, 2 * DTI_CIFAR_RECORD);
    free(cifar);
}

int main(void) {
    char folder[] = "/tmp/test_faults.XXXXXX", command[80];
    for (uint32_t n = 0; n < COUNT; ++n) {
        labels[n] = (uint8_t)(n % CLASSES);
        for (uint32_t i = 0; i < SIDE * SIDE; ++i) pixels[n * SIDE * SIDE + i] = (uint8_t)(dt_philox(1, DT_RNG_TEST, 0, n, i).v[0] % 100 + (i / 12 == n % CLASSES ? 90u : 0u));
    }
    memcpy(more_labels, labels, MORE);
    if (!mkdtemp(folder) || chdir(folder) != 0) return 1;
    make_files();
    const dt_novograd_desc novograd = dt_novograd_defaults();
    if (make(&net, true) != DT_OK || !(opt = dt_novograd(net, &novograd)) ||
        dt_batches_init(&it, &data, &(dt_batches_desc){ .global_batch = 8, .shuffle = true }) != DT_OK || dt_save(net, "kept.safetensors") != DT_OK ||
        dt_checkpoint_save(place(), "kept.checkpoint") != DT_OK || !(traced = dt_comm_alone()) || dt_trace_start(traced, 4) != DT_OK)
        return printf("%s\n", dt_error()), 1;
    dt_trace(traced, "work", 1.0, 2.0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_fails), cmocka_unit_test(calls_fail), cmocka_unit_test(places), cmocka_unit_test(limits),
        cmocka_unit_test(full_disk), cmocka_unit_test(read_only_folder), cmocka_unit_test(huge_claims),
    };
    const int failed = cmocka_run_group_tests_name("faults", tests, NULL, NULL);
    dt_comm_free(traced);
    dt_batches_free(&it);
    dt_optimizer_free(opt);
    dt_net_free(net);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return failed | (chdir("/") || system(command) ? 1 : 0);
}
