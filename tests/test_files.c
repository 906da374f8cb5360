/* Files [S1.5], CSV [S11.2]: what is left of a file when its writing fails, and what stands in a file's place. All of it happens in a folder of its own, which is also the working
   directory. What reaches the disk, and in which order, is seen by standing between the header and fsync and rename. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char events[64];                               /* f: a file flushed to the disk, d: a folder, r: renamed */
static int refuse_fsync;
static int watched_fsync(int fd) {
    struct stat s;
    if (refuse_fsync) { errno = EIO; return -1; }
    strcat(events, fstat(fd, &s) == 0 && S_ISDIR(s.st_mode) ? "d" : "f");
    return fsync(fd);
}
static int watched_rename(const char *from, const char *to) {
    strcat(events, "r");
    return rename(from, to);
}
#define fsync(fd) watched_fsync(fd)
#define rename(from, to) watched_rename(from, to)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#define ok(call) do { dt_err ok_ = (call); if (ok_ != DT_OK) fail_msg("%s: %s", dt_err_name(ok_), dt_error()); } while (0)

static void expect_error(dt_err got, dt_err wanted, const char *part) {
    if (got != wanted || !strstr(dt_error(), part) || strchr(dt_error(), '\n'))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", dt_err_name(wanted), part, dt_err_name(got), dt_error());
}

static char home[64];
static int enter_folder(void **state) {
    (void)state;
    strcpy(home, "/tmp/dtrain_files_XXXXXX");
    events[0] = '\0';
    return !mkdtemp(home) || chdir(home) != 0;
}
static int leave_folder(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", home);
    return chdir("/") != 0 || system(command) != 0;
}

static int entries(void) { /* of the folder */
    int n = 0;
    DIR *d = opendir(".");
    assert_non_null(d);
    while (readdir(d)) ++n;
    closedir(d);
    return n - 2;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s", path);
}

static unsigned char content[4096];
static size_t read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s", path);
    const size_t n = fread(content, 1, sizeof content - 1, f);
    fclose(f);
    content[n] = '\0';
    return n;
}

/* a.weight [2,2], a.bias [2]: 24 bytes, with 1, 2, 3 ... as values. */
static dt_net *small_net(const char *name) {
    dt_net *net = dt_net_new(1, 1, 2);
    dt_linear(net, name, 2);
    ok(dt_net_build(net, &(dt_build_desc){ .batch = 1 }));
    for (int i = 0; i < 6; ++i) dt_net_values(net)[i] = (float)(i + 1);
    return net;
}

/* ---- How files are written. */

static void replaced_whole(void **state) {
    (void)state;
    dt_net *net = small_net("a");
    ok(dt_save(net, "x"));                          /* new */
    assert_string_equal(events, "frd");
    const size_t size = read_file("x");
    struct stat s;
    const mode_t mask = umask(022);
    umask(mask);
    assert_int_equal(stat("x", &s), 0);
    assert_int_equal(s.st_mode & 07777, 0666 & ~mask);

    write_file("x.part", "mine", 4);                /* the user's, as it happens */
    write_file("x.part2", "too", 3);
    assert_int_equal(chmod("x", 0640), 0);
    if (geteuid() == 0) assert_int_equal(chown("x", 1234, 4321), 0);
    ok(dt_save(net, "x"));                          /* old */
    assert_int_equal(stat("x", &s), 0);
    assert_int_equal(s.st_mode & 07777, 0640);
    if (geteuid() == 0) assert_true(s.st_uid == 1234 && s.st_gid == 4321);
    assert_int_equal(read_file("x.part"), 4);
    assert_int_equal(read_file("x.part2"), 3);
    assert_int_equal(entries(), 3);

    /* a disk that fails, and a disk that is full: the old file stays, and nothing beside it */
    write_file("x", "old", 3);
    refuse_fsync = 1;
    expect_error(dt_save(net, "x"), DT_EIO, "x: cannot write it: Input/output error");
    refuse_fsync = 0;
    const struct rlimit full = { 100, RLIM_INFINITY }, room = { RLIM_INFINITY, RLIM_INFINITY };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    const dt_err error = dt_save(net, "x");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &room), 0);
    expect_error(error, DT_EIO, "x: cannot write it: File too large");
    assert_int_equal(read_file("x"), 3);
    assert_int_equal(entries(), 3);
    assert_true(size > 100);
    expect_error(dt_save(net, "/nowhere/at/all"), DT_EIO, "/nowhere/at/all: cannot write it: No such file or directory");
    expect_error(dt_save(net, "/tmp"), DT_EIO, "/tmp: cannot write it: Is a directory");
    dt_net_free(net);
}

static void links_and_others(void **state) {
    (void)state;
    dt_net *net = small_net("a");
    ok(dt_save(net, "good"));
    const size_t size = read_file("good");
    struct stat s;
    assert_int_equal(mkdir("sub", 0700), 0);
    write_file("sub/real", "old", 3);
    assert_int_equal(symlink("sub/real", "link") | symlink("link", "link2") | symlink("sub/new", "dangling"), 0);
    ok(dt_save(net, "link2"));                      /* a link to a link: what it names in the end is replaced */
    assert_true(lstat("link2", &s) == 0 && S_ISLNK(s.st_mode) && lstat("link", &s) == 0 && S_ISLNK(s.st_mode));
    assert_int_equal(read_file("sub/real"), size);
    ok(dt_save(net, "dangling"));
    assert_true(lstat("dangling", &s) == 0 && S_ISLNK(s.st_mode));
    assert_int_equal(read_file("sub/new"), size);

    write_file("one", "old", 3);                    /* a file with two names: both see the new content */
    assert_int_equal(link("one", "two"), 0);
    ok(dt_save(net, "one"));
    assert_true(stat("two", &s) == 0 && s.st_nlink == 2);
    assert_int_equal(read_file("two"), size);

    assert_int_equal(mkfifo("pipe", 0600), 0);      /* a pipe is written, not replaced */
    const int end = open("pipe", O_RDWR);
    assert_true(end >= 0);
    ok(dt_save(net, "pipe"));
    assert_int_equal(read(end, content, sizeof content), size);
    close(end);
    assert_true(lstat("pipe", &s) == 0 && S_ISFIFO(s.st_mode));
    if (stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode)) {
        expect_error(dt_save(net, "/dev/full"), DT_EIO, "/dev/full: cannot write it: No space left");
        assert_true(stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode));
    }
    ok(dt_save(net, "/dev/null"));
    assert_true(stat("/dev/null", &s) == 0 && S_ISCHR(s.st_mode));

    expect_error(dt_load(net, "pipe"), DT_EIO, "pipe is not a plain file but a pipe"); /* and not waited for */
    expect_error(dt_load(net, "sub"), DT_EIO, "sub is not a plain file but a folder");
    expect_error(dt_load(net, "/dev/zero"), DT_EIO, "/dev/zero is not a plain file but a device");
    expect_error(dt_load(net, "missing"), DT_EIO, "cannot open missing: No such file");
    dt_net_free(net);
}

static void asked_before(void **state) {
    (void)state;
    write_file("x", "old", 3);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(symlink("x", "link"), 0);
    const char *const good[] = { "x", "new", "link", "pipe", "./x", "/dev/null" };
    for (size_t i = 0; i < sizeof good / sizeof *good; ++i) ok(dt_check_writable(good[i]));
    assert_int_equal(read_file("x"), 3);
    assert_int_equal(entries(), 3);
    expect_error(dt_check_writable("/nowhere/x"), DT_EIO, "/nowhere/x: cannot write it: No such file or directory");
    expect_error(dt_check_writable("x/y"), DT_EIO, "x/y: cannot write it: Not a directory");
    expect_error(dt_check_writable("."), DT_EIO, ".: cannot write it: Is a directory");
    expect_error(dt_check_writable(""), DT_EIO, ": cannot write it: No such file or directory");
    char lengthy[600];
    memset(lengthy, 'n', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    expect_error(dt_check_writable(lengthy), DT_EIO, "nnn");
    if (geteuid() == 0) return;                     /* who may do everything */
    assert_int_equal(chmod("x", 0400), 0);
    expect_error(dt_check_writable("x"), DT_EIO, "x: cannot write it: Permission denied");
    assert_int_equal(chmod("x", 0600) | chmod(".", 0500), 0);
    ok(dt_check_writable("x"));                     /* in place */
    expect_error(dt_check_writable("new"), DT_EIO, "new: cannot write it: Permission denied");
    assert_int_equal(chmod(".", 0700), 0);
}

static void rows(void **state) {
    (void)state;
    ok(dt_csv_check("x.csv", "name,workers"));
    assert_int_equal(entries(), 0);
    ok(dt_csv_append("x.csv", "name,workers", "%s,%d", "sync", 1));
    FILE *f = fopen("x.csv", "a");
    fputs("psgd", f);                               /* a row that a full disk or a signal cut off */
    fclose(f);
    ok(dt_csv_append("x.csv", "name,workers", "%s,%d", "sync", 2));
    read_file("x.csv");
    assert_string_equal((char *)content, "name,workers\nsync,1\npsgd\nsync,2\n");
    ok(dt_csv_check("x.csv", "name,workers"));
    expect_error(dt_csv_check("x.csv", "name,seconds"), DT_EDATA, "has the columns \"name,workers\", not \"name,seconds\"");
    expect_error(dt_csv_check("/nowhere/x.csv", "a"), DT_EIO, "/nowhere/x.csv: cannot write it: No such file");
    expect_error(dt_csv_append("/dev/full", "a", "%d", 1), DT_EIO, "/dev/full: cannot write it: No space left");
    assert_int_equal(mkfifo("pipe", 0600), 0);      /* nothing is read from a pipe or a terminal to see its columns */
    const int end = open("pipe", O_RDWR);
    ok(dt_csv_append("pipe", "a", "%d", 1));
    assert_int_equal(read(end, content, sizeof content), 4);
    assert_memory_equal(content, "a\n1\n", 4);
    close(end);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(replaced_whole), TEST(links_and_others), TEST(asked_before), TEST(rows),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
