/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_data.c - output and exit codes of lockstep data. */
#include "launch/job.h"

#include "base/report/json.h"
#include "data/convert.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_setup_teardown(name, set_up, clean_up)
#define TOOL(...)  job_start(JOB_LIST(JOB_TOOL, "data", __VA_ARGS__), NULL)

static temp_folder folder;

static const char *in_folder(const char *name)
{
    static char paths[4][TEMP_PATH_BYTES];
    static int next;

    next = (next + 1) % 4;
    return temp_path(&folder, name, paths[next]);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    return 0;
}

static int clean_up(void **state)
{
    temp_folder_remove(&folder);
    return job_clean_up(state);
}

/* DIR/train and DIR/val of 12 random images in 3 classes. */
static void make_folders(const char *dir)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 12, .classes = 3, .height = 10, .width = 14};
    const convert_options how = {.jpeg_quality = 90};
    ls_dataset *d;
    size_t n;

    temp_folder_make(&folder, dir);
    assert_ok(ls_dataset_open_synthetic(&opt, &d));
    for (int i = 0; i < 2; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "%s/%s", dir, i == 0 ? "train" : "val");
        assert_ok(convert_to_folder(d, &how, in_folder(name), &n));
    }
    ls_dataset_close(d);
}

static void expect_error(job *j, int code, const char *text)
{
    job_expect_code(j, code);
    job_expect(j, job_printed(j, 1, text));
    job_clean_up(NULL);
}

static void wrong_calls_are_errors_of_one_line(void **state)
{
    LS_UNUSED(state);
    expect_error(TOOL("--quik"), 2, "did you mean --quick?");
    expect_error(TOOL("floder", "x"), 2, "see lockstep data --help");
    expect_error(TOOL("folder"), 2, "see lockstep data --help");
    expect_error(TOOL("folder", "a", "b", "c"), 2, "c: too many arguments");
    expect_error(TOOL("convert", "x"), 2, "SOURCE and DESTINATION");
    expect_error(TOOL("convert", "x", "y", "--to", "idx"), 2, "--to idx: must be");
    expect_error(TOOL("convert", "x", "y", "--from", "mnist"), 2, "--from mnist: must be");
    expect_error(TOOL("convert", "x", "y", "--to", "cifar", "--jpeg", "9"), 2,
                 "--jpeg needs --to folder");
    expect_error(TOOL("convert", "x", "y", "--to", "cifar", "--image-size", "64"), 2, "32 x 32");
    expect_error(TOOL("cifar", folder.path), 1, "has neither CIFAR-10");
    expect_error(TOOL("idx", folder.path), 1, "train-images-idx3-ubyte");
    expect_error(TOOL("folder", in_folder("none")), 1, "cannot open folder");
}

static bool has_espeak(void)
{
    job *j = job_start(JOB_LIST("/bin/sh", "-c", "command -v espeak-ng || echo none"), NULL);
    bool has;

    job_expect_code(j, 0);
    has = !job_printed(j, 0, "none");
    job_clean_up(NULL);
    return has;
}

/* A file's bytes, terminated by a zero. */
static char *read_text(const char *name)
{
    size_t bytes;
    unsigned char *data = temp_read(in_folder(name), &bytes);
    char *text = realloc(data, bytes + 1);

    assert_non_null(text);
    text[bytes] = 0;
    return text;
}

static void speak_makes_a_set_that_its_seed_decides(void **state)
{
    static const unsigned char mono_22050[] = {1, 0, 0x22, 0x56, 0, 0};
    char *lines[2];

    LS_UNUSED(state);
    if (!has_espeak())
        skip();
    for (int i = 0; i < 2; i++) {
        job *j = TOOL("speak", in_folder(i == 0 ? "a" : "b"), "--count", "3", "--seed", "4");

        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, ": 3 sentences\n"));
        job_clean_up(NULL);
        lines[i] = read_text(i == 0 ? "a/metadata.csv" : "b/metadata.csv");
    }
    assert_string_equal(lines[0], lines[1]);
    assert_int_equal(strncmp(lines[0], "speak-00001|", 12), 0);
    assert_non_null(strstr(lines[0], "\nspeak-00003|"));
    free(lines[0]);
    free(lines[1]);
    lines[0] = read_text("a/wavs/speak-00003.wav");
    assert_memory_equal(lines[0], "RIFF", 4);
    assert_memory_equal(lines[0] + 22, mono_22050, sizeof(mono_22050));
    free(lines[0]);
    expect_error(TOOL("speak", in_folder("a")), 2, "metadata.csv exists");
    expect_error(TOOL("speak", in_folder("c"), "--voice", "nosuch"), 1,
                 "espeak-ng -v nosuch hello");
}

/* The last sample, 16 bits, with |sample| > 100 of the `bytes` of a wav file. */
static size_t last_loud(const unsigned char *wav, size_t bytes)
{
    size_t at = bytes - 2;

    while (at > 44 && abs((int16_t)(wav[at] | wav[at + 1] << 8)) <= 100)
        at -= 2;
    return at;
}

/* A pause would be a part of the sound that no symbol of the text stands for. */
static void no_pause_follows_a_sentence(void **state)
{
    const size_t second = 2 * 22050;
    unsigned char *wav;
    size_t bytes;

    LS_UNUSED(state);
    if (!has_espeak())
        skip();
    job_expect_code(TOOL("speak", in_folder("p"), "--count", "1"), 0);
    job_clean_up(NULL);
    wav = temp_read(in_folder("p/wavs/speak-00001.wav"), &bytes);
    assert_in_range(bytes, second / 2, 60 * second);
    assert_in_range(last_loud(wav, bytes & ~(size_t)1), bytes - second / 10, bytes);
    free(wav);
}

/* Words of the second column of a line "ID|TEXT|NORMALISED TEXT". */
static int words_of(const char *line)
{
    int n = 1;

    for (const char *at = strchr(line, '|') + 1; *at != '|'; at++)
        n += *at == ' ';
    return n;
}

static void short_phrases_have_few_words(void **state)
{
    char *lines;
    job *j;

    LS_UNUSED(state);
    if (!has_espeak())
        skip();
    j = TOOL("speak", in_folder("short"), "--short", "--count", "20", "--seed", "4");
    job_expect_code(j, 0);
    job_clean_up(NULL);
    lines = read_text("short/metadata.csv");
    for (const char *at = lines; *at != 0; at = strchr(at, '\n') + 1)
        assert_in_range(words_of(at), 2, 3);
    free(lines);
}

static void speak_without_espeak_names_the_package(void **state)
{
    LS_UNUSED(state);
    expect_error(job_start(JOB_LIST(JOB_TOOL, "data", "speak", in_folder("a")),
                           JOB_LIST("PATH=/nonexistent")),
                 1, "install the Debian package espeak-ng");
}

static void a_folder_is_described(void **state)
{
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    j = TOOL("folder", in_folder("set"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "set/train\n  images    12 (12 JPEG, 0 PNG)\n"));
    job_expect(j, job_printed(j, 0, "set/val\n"));
    job_expect(j, job_printed(j, 0, "  size      14 x 10\n"));
    job_expect(j, job_printed(j, 0, "  mean      0.") && job_printed(j, 0, "  std       0."));
    job_expect(j, job_printed(j, 0, "  broken    0\n"));
    job_clean_up(NULL);
    j = TOOL("--quick", "folder", in_folder("set/val"), "--classes");
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "  classes   3 of ") && job_printed(j, 0, "  2\n"));
    job_expect(j, !job_printed(j, 0, "mean"));
}

static void broken_images_are_named_and_end_it_with_1(void **state)
{
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    temp_write(in_folder("set/train/1/bad\nname.png"), "GIF89a", 6);
    j = TOOL("folder", in_folder("set"), "-j", "2");
    job_expect_code(j, 1);
    job_expect(
        j,
        job_printed(j, 1, "set/train/1/bad?name.png is a GIF: only JPEG and PNG are supported\n"));
    job_expect(j, job_printed(j, 0, "  broken    1\n") && job_printed(j, 0, "  broken    0\n"));
}

static void a_dangling_link_is_broken_and_the_others_are_examined(void **state)
{
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    assert_int_equal(symlink("../gone.png", in_folder("set/train/0/link.png")), 0);
    j = TOOL("folder", in_folder("set"));
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1,
                              "set/train/0/link.png: it is a link to ../gone.png, which does "
                              "not exist\n"));
    job_expect(j, job_printed(j, 0, "  broken    1\n") && job_printed(j, 0, "  broken    0\n"));
}

static void skipped_files_and_links_are_counted_with_their_reason(void **state)
{
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    temp_write(in_folder("set/val/0/notes.txt"), "", 0);
    temp_write(in_folder("set/val/a.jpg"), "", 0);
    temp_write(in_folder("set/val/b.csv"), "", 0);
    assert_int_equal(symlink("gone", in_folder("set/val/cats")), 0);
    assert_int_equal(symlink("loop", in_folder("set/val/loop")), 0);
    j = TOOL("folder", in_folder("set/val"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "  others    1 file skipped: not named .jpg, .jpeg or .png\n"));
    job_expect(j, job_printed(j, 0, "  beside    2 files skipped: beside the class folders\n"));
    job_expect(j, job_printed(j, 0,
                              "  dangling  2 links skipped: beside the class folders, "
                              "without a readable target\n"));
}

/* A look at sizes finds only those whose beginning is broken. */
static void a_quick_look_does_not_count_broken_images(void **state)
{
    json_value *splits;
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    j = TOOL("folder", in_folder("set"), "--quick");
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "  broken    unknown: --quick does not decode images\n") &&
                      !job_printed(j, 0, "broken    0"));
    job_clean_up(NULL);
    j = TOOL("folder", in_folder("set"), "--quick", "--json");
    job_expect_code(j, 0);
    assert_ok(json_parse(text_str(&j->out), j->out.length, "the report", &splits));
    assert_null(json_get(json_at(splits, 0), "broken"));
    assert_true(json_as_bool(json_get(json_at(splits, 0), "quick"), false));
    json_free(splits);
    job_clean_up(NULL);
    temp_write(in_folder("set/train/1/bad.png"), "GIF89a", 6);
    j = TOOL("folder", in_folder("set"), "--quick");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, "  broken    1 or more: --quick does not decode images\n"));
}

static void class_missing_in_val_is_reported(void **state)
{
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    temp_folder_make(&folder, "set/train/3");
    temp_write(in_folder("set/train/3/x.jpg"), "", 0);
    j = TOOL("folder", in_folder("set"), "--quick");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "set/val has no class 3, which the other set has\n"));
    job_expect(j, job_printed(j, 0, "set/train\n"));
}

/* From a folder to CIFAR's format and back; the descriptions are JSON. */
static void conversions_work_in_both_directions(void **state)
{
    json_value *splits;
    const json_value *test_split;
    job *j;

    LS_UNUSED(state);
    make_folders("set");
    j = TOOL("convert", in_folder("set"), in_folder("cifar"), "--from", "folder", "--to", "cifar");
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "cifar/train: 12 images\n"));
    job_clean_up(NULL);
    j = TOOL("cifar", in_folder("cifar"), "--json");
    job_expect_code(j, 0);
    assert_ok(json_parse(text_str(&j->out), j->out.length, "the report", &splits));
    assert_int_equal(json_size(splits), 2);
    test_split = json_at(splits, 1);
    assert_int_equal(json_as_int(json_get(test_split, "images"), -1), 12);
    assert_int_equal(json_as_int(json_get(test_split, "broken"), -1), 0);
    assert_int_equal(json_as_int(json_at(json_get(test_split, "width"), 1), -1), 32);
    assert_int_equal(json_size(json_get(test_split, "mean")), 3);
    assert_int_equal(json_size(json_get(test_split, "classes")), 10);
    json_free(splits);
    job_clean_up(NULL);
    j = TOOL("convert", in_folder("cifar"), in_folder("back"), "--from", "cifar", "--per-class",
             "1", "--image-size", "16");
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "back/val: 3 images\n"));
    job_clean_up(NULL);
    expect_error(TOOL("convert", in_folder("cifar"), in_folder("back"), "--from", "cifar"), 1,
                 "back/train: File exists");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(wrong_calls_are_errors_of_one_line),
        test(speak_makes_a_set_that_its_seed_decides),
        test(no_pause_follows_a_sentence),
        test(short_phrases_have_few_words),
        test(speak_without_espeak_names_the_package),
        test(a_folder_is_described),
        test(broken_images_are_named_and_end_it_with_1),
        test(a_dangling_link_is_broken_and_the_others_are_examined),
        test(skipped_files_and_links_are_counted_with_their_reason),
        test(a_quick_look_does_not_count_broken_images),
        test(class_missing_in_val_is_reported),
        test(conversions_work_in_both_directions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
