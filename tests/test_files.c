/* Files [E6.1], JSON [E6.2], saved parameters [E6.3], CSV [E6.4]: what is left of a file when
   its writing fails, what stands in a file's place, and a reader that believes nothing. All of it
   happens in a folder of its own, which is also the working directory. What reaches the disk, and
   in which order, is seen by standing between the header and fsync and rename. */
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

/* f: a file flushed to the disk, d: a folder, r: renamed */
static char events[64];
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
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", dt_err_name(wanted), part,
                 dt_err_name(got), dt_error());
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

/* ---- JSON. */

static dti_json json_of(const char *text, size_t n) {
    return (dti_json){ text, text, text + n, NULL };
}

static void json_strings(void **state) {
    (void)state;
    static const struct { const char *text, *meant, *why; } cases[] = {
        { "\"\"", "", NULL },
        { " \t\r\n\"a b\"", "a b", NULL },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", NULL },
        { "\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", NULL },
        { "\"\\ud83d\\ude00\\udbff\\udfff\"", "\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", NULL },
        { "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f", NULL },
        { "", NULL, "'\"' is missing" },
        { "a\"", NULL, "'\"' is missing" },
        { "'a'", NULL, "'\"' is missing" },
        { "\"abc", NULL, "a string without an end" },
        { "\"abc\\\"", NULL, "a string without an end" },
        { "\"abc\\", NULL, "an escape that JSON does not have" },
        { "\"\\x41\"", NULL, "an escape that JSON does not have" },
        { "\"\\U0041\"", NULL, "an escape that JSON does not have" },
        { "\"\\u004", NULL, "an escape that JSON does not have" },
        { "\"\\u00g1\"", NULL, "\\u without four hexadecimal digits" },
        { "\"\\u 041\"", NULL, "\\u without four hexadecimal digits" },
        { "\"\\ud83d\"", NULL, "an escape that JSON does not have" },
        { "\"\\ud83dabcdefg\"", NULL, "an escape that JSON does not have" },
        { "\"\\ud83d\\u0041\"", NULL, "half of a surrogate pair" },
        { "\"\\ud83d\\ud83d\"", NULL, "half of a surrogate pair" },
        { "\"\\ude00\\ud83d\"", NULL, "half of a surrogate pair" },
        { "\"a\nb\"", NULL, "a control character in a string" },
        { "\"a\x1f\"", NULL, "a control character in a string" },
        { "\"\x80\"", NULL, "a string that is not UTF-8" },
        { "\"\xff\"", NULL, "a string that is not UTF-8" },
        { "\"\xc3\"", NULL, "a string that is not UTF-8" },
        { "\"\xe2\x82\"", NULL, "a string that is not UTF-8" },
        { "\"\xe2\x82", NULL, "a string that is not UTF-8" },
        { "\"\xc0\xaf\"", NULL, "a string that is not UTF-8" },
        { "\"\xe0\x9f\xbf\"", NULL, "a string that is not UTF-8" },
        { "\"\xed\xa0\x80\"", NULL, "a string that is not UTF-8" },
        { "\"\xf0\x8f\xbf\xbf\"", NULL, "a string that is not UTF-8" },
        { "\"\xf4\x90\x80\x80\"", NULL, "a string that is not UTF-8" },
        { "\"\xf5\x80\x80\x80\"", NULL, "a string that is not UTF-8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char out[32];
        size_t length;
        dti_json j = json_of(cases[i].text, strlen(cases[i].text));
        const bool good = dti_json_string(&j, out, sizeof out, &length);
        if (good != !cases[i].why)
            fail_msg("case %zu, %s: %s", i, cases[i].text, j.why ? j.why : "accepted");
        if (!good) { assert_string_equal(j.why, cases[i].why); continue; }
        assert_string_equal(out, cases[i].meant);
        assert_int_equal(length, strlen(cases[i].meant));
        assert_ptr_equal(j.at, j.end);
    }
    /* what does not fit is cut, and says so; a NUL is a character like others */
    char out[4];
    size_t length;
    dti_json j = json_of("\"abcdef\" \"a\\u0000b\"", 19);
    assert_true(dti_json_string(&j, out, sizeof out, &length));
    assert_string_equal(out, "abc");
    assert_int_equal(length, 6);
    assert_true(dti_json_string(&j, out, sizeof out, &length));
    assert_memory_equal(out, "a\0b", 4);
    assert_int_equal(length, 3);
}

static void json_numbers(void **state) {
    (void)state;
    static const struct { const char *text; uint64_t meant; const char *why; } cases[] = {
        { "0", 0, NULL }, { " 7,", 7, NULL }, { "18446744073709551615", UINT64_MAX, NULL },
        { "18446744073709551616", 0, "a number beyond 64 bits" },   { "99999999999999999999999", 0, "a number beyond 64 bits" },
        { "-1", 0, "a whole number, 0 or more, is missing" },       { "+1", 0, "a whole number, 0 or more, is missing" },
        { "", 0, "a whole number, 0 or more, is missing" },         { "\"1\"", 0, "a whole number, 0 or more, is missing" },
        { "null", 0, "a whole number, 0 or more, is missing" },     { "[", 0, "a whole number, 0 or more, is missing" },
        { "01", 0, "a number that begins with 0" },                 { "00", 0, "a number that begins with 0" },
        { "1.0", 0, "a number that is not whole" },                 { "1e2", 0, "a number that is not whole" },
        { "0E0", 0, "a number that is not whole" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        uint64_t n;
        dti_json j = json_of(cases[i].text, strlen(cases[i].text));
        const bool good = dti_json_whole(&j, &n);
        if (good != !cases[i].why) fail_msg("%s: %s", cases[i].text, j.why ? j.why : "accepted");
        if (good) assert_true(n == cases[i].meant);
        else assert_string_equal(j.why, cases[i].why);
    }
}

static void json_quotes(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        { "", "\"\"" },
        { "conv1", "\"conv1\"" },
        { "a\"b\\c/d", "\"a\\\"b\\\\c/d\"" },
        { "\t\n\x01\x1f\x7f", "\"\\u0009\\u000a\\u0001\\u001f\x7f\"" },
        { "\xc3\xa9 \xf0\x9f\x98\x80", "\"\xc3\xa9 \xf0\x9f\x98\x80\"" },
        { "a\xff\xc3", "\"a\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "\xed\xa0\x80z", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char out[64];
        dti_json_quote(out, cases[i][0]);
        assert_string_equal(out, cases[i][1]);
    }
}

/* ---- Saved parameters. Headers are written with ' for ", and W, B stand for the entries as they
   should be. */

#define W "'a.weight':{'dtype':'F32','shape':[2,2],'data_offsets':[0,16]}"
#define B "'a.bias':{'dtype':'F32','shape':[2],'data_offsets':[16,24]}"
#define BIAS(dtype, shape, offsets) "{" W ",'a.bias':{'dtype':" dtype ",'shape':" shape ",'data_offsets':" offsets "}}"

static unsigned char forged[1024];
static size_t forge(const char *header, size_t data) {
    const size_t n = strlen(header);
    assert_true(8 + n + data <= sizeof forged);
    dti_put_le(forged, n, 8);
    for (size_t i = 0; i < n; ++i) {
        const char c = header[i];
        forged[8 + i] = (unsigned char)(c == '\'' ? '"' : c == '\1' ? '\0' : c);
    }
    for (size_t i = 0; i < data / 4; ++i) {
        const float value = (float)(10 * (i + 1));
        uint32_t bits;
        memcpy(&bits, &value, 4);
        dti_put_le(forged + 8 + n + 4 * i, bits, 4);
    }
    memset(forged + 8 + n + data / 4 * 4, 0, data % 4);
    return 8 + n + data;
}

/* Loads what is in `forged` from a block that ends where the file ends, so that tools that watch
   memory see a byte too far. */
static dt_err load_forged(dt_net *net, size_t size) {
    unsigned char *block = malloc(size);
    memcpy(block, forged, size);
    const dt_err error = dti_load_bytes(net, block, size, "x.st");
    free(block);
    return error;
}

static void good_headers(void **state) {
    (void)state;
    static const char *const headers[] = {
        "{" W "," B "}",
        "{" B "," W "}",
        "{'__metadata__':{'format':'pt'}," W "," B "}      ",
        "{" W ",'__metadata__':{}," B "}",
        "{ \r\n\t" W " , " B "\n}\n",
        "{'__metadata__':{'frozen':'a.bias','data_offsets':'[0,8]','F32':'}{][,:'}," B "," W "}",
        "{'a\\u002ewe\\u0069ght':{'\\u0064type':'\\u004632','sh\\u0061pe':[2,2],'data_offsets':[0,16]}," B
        "}",
        "{" W ",'a.bias': {'data_offsets': [ 16 , 24 ], 'shape': [ 2 ], 'dtype': 'F32' }}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; ++i) {
        dt_net *net = small_net("a");
        ok(load_forged(net, forge(headers[i], 24)));
        for (int k = 0; k < 6; ++k) assert_true(dt_net_values(net)[k] == (float)(10 * (k + 1)));
        dt_net_free(net);
    }
    /* the data in another order than the net's, and than the header's */
    dt_net *net = small_net("a");
    ok(load_forged(net, forge("{'a.weight':{'dtype':'F32','shape':[2,2],'data_offsets':[8,24]},"
                              "'a.bias':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 24)));
    const float want[6] = { 30, 40, 50, 60, 10, 20 };
    assert_memory_equal(dt_net_values(net), want, sizeof want);
    dt_net_free(net);
}

static const struct { const char *header; size_t data; const char *why; } damages[] = {
    /* the text */
    { "{}", 24, "x.st: has no a.weight" },
    { "{" W "}", 24, "x.st: has no a.bias" },
    { "{" W "," B "", 24, "byte 123 of the header: ',' or '}' is missing" },
    { "{" W "," B "}x", 24, "something stands behind the last '}'" },
    { "{" W "," B "}{}", 24, "something stands behind the last '}'" },
    { "{" W "," B "}\1\1\1", 24, "a NUL byte" },
    { "{" W "," B ",}", 24, "'\"' is missing" },
    { "{," W "," B "}", 24, "'\"' is missing" },
    { "{" W " " B "}", 24, "',' or '}' is missing" },
    { "{" W "," B "]", 24, "',' or '}' is missing" },
    { "{" W ",/**/" B "}", 24, "'\"' is missing" },
    { "{" W ",'a.bias' {}}", 24, "':' is missing" },
    { "{" W ",'a.bias':[]}", 24, "'{' is missing" },
    { "{" W ",'a.bias':null}", 24, "'{' is missing" },
    { "{" W ",'a\n.bias':{}}", 24, "a control character in a string" },
    { "{" W ",'a\xff.bias':{}}", 24, "a string that is not UTF-8" },
    { "{" W ",'a\\q.bias':{}}", 24, "an escape that JSON does not have" },
    { "{" W "," B "\xc2\xa0}", 24, "',' or '}' is missing" },
    /* the names */
    { "{" W "," B "," B "}", 24, "holds \"a.bias\" twice" },
    { "{" W "," B ",'a.b\\u0069as':{'dtype':'F32','shape':[2],'data_offsets':[16,24]}}", 24, "holds \"a.b\\u0069as\" twice" },
    { "{" W "," B ",'b':{'dtype':'F32','shape':[0],'data_offsets':[24,24]}}", 24, "holds \"b\", which the net does not have" },
    { "{" W ",'a.bia':{}}", 24, "holds \"a.bia\", which the net does not have" },
    { "{" W ",'a.bias\\u0000':{}}", 24, "holds \"a.bias\\u0000\", which the net does not have" },
    { "{" W ",'A.bias':{}}", 24, "holds \"A.bias\", which the net does not have" },
    { "{" W ",'':{}}", 24, "holds \"\", which the net does not have" },
    /* the metadata */
    { "{'__metadata__':{},'__metadata__':{}," W "," B "}", 24, "holds \"__metadata__\" twice" },
    { "{'__metadata__':'pt'," W "," B "}", 24, "__metadata__ is no object" },
    { "{'__metadata__':['pt']," W "," B "}", 24, "__metadata__ is no object" },
    { "{'__metadata__':{'step':1}," W "," B "}", 24, "'\"' is missing" },
    { "{'__metadata__':{'a':{'b':'c'}}," W "," B "}", 24, "'\"' is missing" },
    { "{'__metadata__':{'a':'b',}," W "," B "}", 24, "'\"' is missing" },
    /* an entry */
    { "{" W ",'a.bias':{}}", 24, "a.bias has no \"dtype\"" },
    { "{" W ",'a.bias':{'dtype':'F32','data_offsets':[16,24]}}", 24, "a.bias has no \"shape\"" },
    { "{" W ",'a.bias':{'dtype':'F32','shape':[2]}}", 24, "a.bias has no \"data_offsets\"" },
    { "{" W ",'a.bias':{'dtype':'F16','note':'F32','shape':[2],'data_offsets':[16,24]}}", 24, "a.bias is of dtype \"F16\", not \"F32\"" },
    { "{" W ",'a.bias':{'dtype':'F32','note':'F16','shape':[2],'data_offsets':[16,24]}}", 24, "a.bias has a key that the format does not know, \"note\"" },
    { "{" W ",'a.bias':{'dtype':'F32','dtype':'F32','shape':[2],'data_offsets':[16,24]}}", 24, "a.bias has two keys \"dtype\"" },
    { "{" W ",'a.bias':{'dtype':'F32','shape':[2],'data_offsets':[16,24],'shape':[2]}}", 24, "a.bias has two keys \"shape\"" },
    { BIAS("'I32'", "[2]", "[16,24]"), 24, "a.bias is of dtype \"I32\", not \"F32\"" },
    { BIAS("'f32'", "[2]", "[16,24]"), 24, "a.bias is of dtype \"f32\", not \"F32\"" },
    { BIAS("'F32\\u0000'", "[2]", "[16,24]"), 24, "a.bias is of dtype \"F32\\u0000\", not" },
    { BIAS("'F\\n'", "[2]", "[16,24]"), 24, "a.bias is of dtype \"F\\n\", not \"F32\"" },
    { "{" W ",'a.bias':{'\\n':1}}", 24, "a.bias has a key that the format does not know, \"\\n\"" },
    { BIAS("32", "[2]", "[16,24]"), 24, "'\"' is missing" },
    { BIAS("'F32'", "[1]", "[16,24]"), 24, "a.bias has another shape" },
    { BIAS("'F32'", "[2,1]", "[16,24]"), 24, "a.bias has another shape" },
    { BIAS("'F32'", "[]", "[16,24]"), 24, "a.bias has another shape" },
    { BIAS("'F32'", "[4294967298]", "[16,24]"), 24, "a.bias has another shape" },
    { BIAS("'F32'", "[18446744073709551618]", "[16,24]"), 24, "a number beyond 64 bits" },
    { BIAS("'F32'", "[2,1,1,1,1]", "[16,24]"), 24, "a list that is too long" },
    { BIAS("'F32'", "[-2]", "[16,24]"), 24, "a whole number, 0 or more, is missing" },
    { BIAS("'F32'", "[2.0]", "[16,24]"), 24, "a number that is not whole" },
    { BIAS("'F32'", "[2e0]", "[16,24]"), 24, "a number that is not whole" },
    { BIAS("'F32'", "[02]", "[16,24]"), 24, "a number that begins with 0" },
    { BIAS("'F32'", "[2,]", "[16,24]"), 24, "a whole number, 0 or more, is missing" },
    { BIAS("'F32'", "2", "[16,24]"), 24, "'[' is missing" },
    { BIAS("'F32'", "[[2]]", "[16,24]"), 24, "a whole number, 0 or more, is missing" },
    { BIAS("'F32'", "{'0':2}", "[16,24]"), 24, "'[' is missing" },
    /* the offsets */
    { BIAS("'F32'", "[2]", "[16]"), 24, "the data_offsets of a.bias do not say where its 8 bytes lie" },
    { BIAS("'F32'", "[2]", "[]"), 24, "the data_offsets of a.bias do not say" },
    { BIAS("'F32'", "[2]", "[16,24,24]"), 24, "a list that is too long" },
    { BIAS("'F32'", "[2]", "[24,16]"), 24, "the data_offsets of a.bias do not say" },
    { BIAS("'F32'", "[2]", "[16,23]"), 24, "the data_offsets of a.bias do not say" },
    { BIAS("'F32'", "[2]", "[16,16]"), 24, "the data_offsets of a.bias do not say" },
    { BIAS("'F32'", "[2]", "[18446744073709551608,0]"), 24, "the data_offsets of a.bias do not say" },
    { BIAS("'F32'", "[2]", "[0,8]"), 24, "begins at byte 0 of the data, where the one before it ends at" },
    { BIAS("'F32'", "[2]", "[12,20]"), 24, "a.bias begins at byte 12 of the data, where the one before it ends at 16: they overlap" },
    { BIAS("'F32'", "[2]", "[20,28]"), 28, "a.bias begins at byte 20 of the data, where the one before it ends at 16: a hole" },
    { BIAS("'F32'", "[2]", "[18446744073709551600,18446744073709551608]"), 24, "a.bias begins at byte 18446744073709551600" },
    { "{'a.weight':{'dtype':'F32','shape':[2,2],'data_offsets':[8,24]},'a.bias':{'dtype':'F32','shape':[2],'data_offsets':[24,32]}}", 32,
      "a.weight begins at byte 8 of the data, where the one before it ends at 0: a hole" },
    { "{" W "," B "}", 25, "the parameters take 24 bytes, but 25 stand behind the header" },
    { "{" W "," B "}", 23, "the parameters take 24 bytes, but 23 stand behind the header" },
    { "{" W "," B "}", 0, "the parameters take 24 bytes, but 0 stand behind the header" },
    /* what is no header */
    { "", 24, "is not a safetensors file" },
    { "[]", 24, "is not a safetensors file" },
    { " {" W "," B "}", 24, "is not a safetensors file" },
    { "\xef\xbb\xbf{" W "," B "}", 24, "is not a safetensors file" },
};

static void bad_headers(void **state) {
    (void)state;
    dt_net *net = small_net("a");
    const uint64_t before = dt_net_hash(net);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; ++i) {
        expect_error(load_forged(net, forge(damages[i].header, damages[i].data)), DT_EDATA,
                     damages[i].why);
        assert_non_null(strstr(dt_error(), "x.st"));
        if (dt_net_hash(net) != before) fail_msg("%s: the net was written", damages[i].header);
    }
    const size_t size = forge("{" W "," B "}", 24);
    const uint64_t lengths[] = {
        0, 1, size - 7, UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 1ull << 40
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
        dti_put_le(forged, lengths[i], 8);
        expect_error(load_forged(net, size), DT_EDATA, "is not a safetensors file");
    }
    for (size_t cut = 0; cut < size; ++cut) {       /* cut off anywhere */
        forge("{" W "," B "}", 24);
        assert_int_equal(load_forged(net, cut), DT_EDATA);
    }
    printf("safetensors: %zu headers that are wrong, %zu lengths, cut off at %zu bytes: all refused\n", sizeof damages / sizeof *damages,
           sizeof lengths / sizeof *lengths, size);
    assert_true(dt_net_hash(net) == before);
    dt_net_free(net);
}

/* Brackets without an end, where a reader that calls itself would run out of stack. */
static void deep_headers(void **state) {
    (void)state;
    static const char *const starts[] = { "{\"__metadata__\":", "{\"__metadata__\":{\"a\":",
                                          "{\"a.bias\":", "{\"a.bias\":{\"shape\":" };
    enum { DEEP = 8 << 20 };
    dt_net *net = small_net("a");
    unsigned char *file = malloc(DEEP);
    for (size_t i = 0; i < 8; ++i) {
        dti_put_le(file, DEEP - 8, 8);
        memset(file + 8, i < 4 ? '[' : '{', DEEP - 8);
        memcpy(file + 8, starts[i % 4], strlen(starts[i % 4]));
        assert_int_equal(dti_load_bytes(net, file, DEEP, "x.st"), DT_EDATA);
    }
    free(file);
    dt_net_free(net);
}

/* Bytes changed at random: no crash, nothing read out of bounds, and a net that is loaded whole
   or as it was. */
static void mutated_files(void **state) {
    (void)state;
    dt_net *net = small_net("a");
    const uint64_t before = dt_net_hash(net);
    int loaded = 0;
    for (uint32_t i = 0; i < 20000; ++i) {
        size_t size =
            forge("{'__metadata__':{'format':'pt','\\u00e9':'\\ud83d\\ude00'}," W ", " B "}  ", 24);
        const dt_philox_block how = dt_philox(6, DT_RNG_TEST, 2, i, 0);
        for (uint32_t k = 0; k < 1 + how.v[0] % 4; ++k) {
            static const char likely[] = "\"\\{}[]:,0129 \t-.eu\x80\xff";
            const dt_philox_block r = dt_philox(6, DT_RNG_TEST, 2, i, 1 + k);
            const size_t at = 8 + r.v[0] % (size - 8);
            /* a byte less */
            if (r.v[1] % 8 == 0) { memmove(forged + at, forged + at + 1, --size - at); continue; }
            forged[at] =
                (unsigned char)(r.v[1] % 2 ? likely[r.v[2] % (sizeof likely - 1)] : (char)r.v[2]);
        }
        if (how.v[1] % 8) dti_put_le(forged, size - 8 - 24, 8);
        const dt_err error = load_forged(net, size);
        loaded += error == DT_OK;
        assert_true(error == DT_OK || error == DT_EDATA);
        if (error != DT_OK) assert_true(dt_net_hash(net) == before);
        for (int k = 0; k < 6; ++k) dt_net_values(net)[k] = (float)(k + 1);
    }
    /* both ways are taken: most changes in the metadata and the floats are allowed */
    assert_in_range(loaded, 200, 10000);
    printf("safetensors: 20000 files with one to four bytes changed: %d refused, %d read\n", 20000 - loaded, loaded);
    dt_net_free(net);
}

/* ---- Names in files. */

static void names_in_files(void **state) {
    (void)state;
    static const char *const names[] = { "a \"quoted\" name",
                                         "back\\slash",
                                         "\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80",
                                         "{}[]:,",
                                         "/",
                                         "\x7e" };
    static const char python[] =
        "python3 -c 'import json, struct\n"
        "raw = open(\"x.st\", \"rb\").read()\n"
        "n, = struct.unpack(\"<Q\", raw[:8])\n"
        "print(list(json.loads(raw[8:8+n].decode()))[0], end=\"\")' 2>/dev/null";
    const bool other_reader = system("python3 -c pass 2>/dev/null") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        dt_net *net = small_net(names[i]), *again = small_net(names[i]);
        memset(dt_net_values(again), 0, 24);
        ok(dt_save(net, "x.st"));
        ok(dt_load(again, "x.st"));
        assert_true(dt_net_hash(net) == dt_net_hash(again));
        if (other_reader) {
            char theirs[96] = "", ours[96];
            FILE *p = popen(python, "r");
            theirs[fread(theirs, 1, sizeof theirs - 1, p)] = '\0';
            assert_int_equal(pclose(p), 0);
            snprintf(ours, sizeof ours, "%s.weight", names[i]);
            assert_string_equal(theirs, ours);
        }
        dt_net_free(net);
        dt_net_free(again);
    }
    if (!other_reader) puts("skipped: names read by python3 (there is none)");
    static const struct { const char *name, *why; } refused[] = {
        { "a\nb", "linear: byte 1 of the name, 0x0a, is a control character" },
        { "\x01", "linear: byte 0 of the name, 0x01, is a control character" },
        { "del\x7f", "linear: byte 3 of the name, 0x7f, is a control character" },
        { "a\xff", "linear: byte 1 of the name, 0xff, is not UTF-8" },
        { "\xc3\xa9\xc3", "linear: byte 2 of the name, 0xc3, is not UTF-8" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        dt_net *net = dt_net_new(1, 1, 2);
        dt_linear(net, refused[i].name, 2);
        expect_error(dt_net_build(net, &(dt_build_desc){ .batch = 1 }), DT_EARG, refused[i].why);
        expect_error(dt_save(net, "y.st"), DT_EARG, "of the name, 0x");
        expect_error(dt_load(net, "x.st"), DT_EARG, "of the name, 0x");
        dt_net_free(net);
    }
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
    /* the reason is that of the write that failed, not of the last one */
    dti_output out;
    ok(dti_output_open(&out, "/dev/full"));
    for (int i = 0; i < 100000; ++i) fputs("more than a stream keeps", out.file);
    expect_error(dti_output_close(&out), DT_EIO,
                 "/dev/full: cannot write it: No space left on device");
    expect_error(dt_save(net, "/nowhere/at/all"), DT_EIO,
                 "/nowhere/at/all: cannot write it: No such file or directory");
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
    assert_int_equal(symlink("sub/real", "link") | symlink("link", "link2") |
                         symlink("sub/new", "dangling"),
                     0);
    /* a link to a link: what it names in the end is replaced */
    ok(dt_save(net, "link2"));
    assert_true(lstat("link2", &s) == 0 && S_ISLNK(s.st_mode) && lstat("link", &s) == 0 &&
                S_ISLNK(s.st_mode));
    assert_int_equal(read_file("sub/real"), size);
    ok(dt_save(net, "dangling"));
    assert_true(lstat("dangling", &s) == 0 && S_ISLNK(s.st_mode));
    assert_int_equal(read_file("sub/new"), size);
    char far[600];
    assert_non_null(getcwd(far, 500));
    strcat(far, "/sub/far");
    assert_int_equal(symlink(far, "sub/absolute") | symlink("sub/absolute", "twice"), 0);
    ok(dt_save(net, "twice"));                      /* link to link to what is not there */
    assert_int_equal(read_file("sub/far"), size);
    assert_int_equal(symlink("circle", "circle"), 0);
    expect_error(dt_save(net, "circle"), DT_EIO, "circle: cannot write it: Too many levels");

    /* an open file that has lost its name is written as it is, and no other one takes the name */
    const int lost = open("lost", O_RDWR | O_CREAT, 0600);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", lost);
    assert_int_equal(unlink("lost"), 0);
    if (stat(path, &s) == 0) {
        ok(dt_save(net, path));
        assert_true(fstat(lost, &s) == 0 && (size_t)s.st_size == size);
        assert_true(access("lost", F_OK) != 0 && access("lost (deleted)", F_OK) != 0);
    }
    close(lost);

    /* a file with two names: both see the new content */
    write_file("one", "old", 3);
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
    expect_error(dt_save(net, "pipe"), DT_EIO,
                 "pipe: cannot write it: it is a pipe that nobody reads");
    if (stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode)) {
        expect_error(dt_save(net, "/dev/full"), DT_EIO,
                     "/dev/full: cannot write it: No space left");
        assert_true(stat("/dev/full", &s) == 0 && S_ISCHR(s.st_mode));
    }
    ok(dt_save(net, "/dev/null"));
    assert_true(stat("/dev/null", &s) == 0 && S_ISCHR(s.st_mode));

    /* and not waited for */
    expect_error(dt_load(net, "pipe"), DT_EIO, "pipe is not a plain file but a pipe");
    expect_error(dt_load(net, "sub"), DT_EIO, "sub is not a plain file but a folder");
    expect_error(dt_load(net, "/dev/zero"), DT_EIO, "/dev/zero is not a plain file but a device");
    expect_error(dt_load(net, "missing"), DT_EIO, "cannot open missing: No such file");
    dt_net_free(net);
}

static void asked_before(void **state) {
    (void)state;
    write_file("x", "old", 3);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(symlink("x", "link") | symlink("not yet", "dangling") |
                         symlink("/nowhere/x", "lost"),
                     0);
    const char *const good[] = { "x", "new", "link", "dangling", "pipe", "./x", "/dev/null" };
    for (size_t i = 0; i < sizeof good / sizeof *good; ++i) ok(dt_check_writable(good[i]));
    assert_int_equal(read_file("x"), 3);
    assert_int_equal(entries(), 5);                 /* no new file, nor "not yet" */
    expect_error(dt_check_writable("lost"), DT_EIO, "lost: cannot write it: No such file");
    expect_error(dt_check_writable("/nowhere/x"), DT_EIO,
                 "/nowhere/x: cannot write it: No such file or directory");
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
    expect_error(dt_csv_check("x.csv", "name,seconds"), DT_EDATA,
                 "has the columns \"name,workers\", not \"name,seconds\"");
    expect_error(dt_csv_check("/nowhere/x.csv", "a"), DT_EIO,
                 "/nowhere/x.csv: cannot write it: No such file");
    expect_error(dt_csv_append("/dev/full", "a", "%d", 1), DT_EIO,
                 "/dev/full: cannot write it: No space left");
    /* nothing is read from a pipe or a terminal to see its columns */
    assert_int_equal(mkfifo("pipe", 0600), 0);
    const int end = open("pipe", O_RDWR);
    ok(dt_csv_append("pipe", "a", "%d", 1));
    assert_int_equal(read(end, content, sizeof content), 4);
    assert_memory_equal(content, "a\n1\n", 4);
    close(end);
    expect_error(dt_csv_append("pipe", "a", "%d", 1), DT_EIO,
                 "pipe: cannot write it: it is a pipe that nobody reads");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_strings),
        cmocka_unit_test(json_numbers),
        cmocka_unit_test(json_quotes),
        cmocka_unit_test(good_headers),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(deep_headers),
        cmocka_unit_test(mutated_files),
        TEST(names_in_files),
        TEST(replaced_whole),
        TEST(links_and_others),
        TEST(asked_before),
        TEST(rows),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
