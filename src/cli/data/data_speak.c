/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_speak.c - short English sentences or phrases of a small grammar, spoken by espeak-ng, for
 * cmd_data.c. The seed alone decides them. metadata.csv is written last, so that a set without it
 * is incomplete.
 */
#include "cli/data/data_speak.h"

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "diagnose/child.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRAM    "espeak-ng"
#define SPEED      "150" /* words a minute */
#define LIMIT_MS   60000 /* of one sentence */
#define PATH_BYTES 4096

static const char *const subjects[] = {"The cat",        "A dog",       "My friend",
                                       "Our teacher",    "The old man", "A small bird",
                                       "The new doctor", "One child"};
static const char *const acts[] = {"sings",  "sleeps", "waits", "runs",
                                   "smiles", "works",  "reads", "walks"};
static const char *const places[] = {"in the garden",  "at home",     "near the river",
                                     "under the tree", "in the rain", "on the hill",
                                     "after lunch",    "by the sea"};
static const char *const verbs[] = {"buys", "sees", "finds", "counts", "draws", "carries"};
static const char *const things[] = {"apples", "books", "stones", "boats", "letters", "flowers"};
static const char *const numbers[][2] = {{"2", "two"},     {"3", "three"},   {"5", "five"},
                                         {"8", "eight"},   {"10", "ten"},    {"11", "eleven"},
                                         {"12", "twelve"}, {"20", "twenty"}, {"40", "forty"}};

#define DRAW(rng, list) (list)[ls_rng_below(rng, LS_COUNT_OF(list))]

static const char *draw_word(ls_rng *rng)
{
    switch (ls_rng_below(rng, 4)) {
    case 0:
        return DRAW(rng, acts);
    case 1:
        return DRAW(rng, verbs);
    case 2:
        return DRAW(rng, things);
    default:
        return DRAW(rng, numbers)[1];
    }
}

/* Words in any order: there are too many such phrases to learn them by heart, so that a network
 * must read. Appends TEXT|NORMALISED TEXT, as add_sentence(). */
static void add_phrase(text_buf *line, ls_rng *rng)
{
    const int n = 2 + (int)ls_rng_below(rng, 2);
    const char *words[3];

    for (int i = 0; i < n; i++)
        words[i] = draw_word(rng);
    for (int column = 0; column < 2; column++) {
        for (int i = 0; i < n; i++)
            text_append(line, "%s%s", words[i], i < n - 1 ? " " : ".");
        text_append(line, "%s", column == 0 ? "|" : "");
    }
}

static void add_sentence(text_buf *line, ls_rng *rng)
{
    const char *subject = DRAW(rng, subjects);

    if (ls_rng_below(rng, 2) == 0) {
        const char *act = DRAW(rng, acts);
        const char *place = DRAW(rng, places);

        text_append(line, "%s %s %s.|%s %s %s.", subject, act, place, subject, act, place);
    } else {
        const char *verb = DRAW(rng, verbs);
        const char *const *number = DRAW(rng, numbers);
        const char *thing = DRAW(rng, things);

        text_append(line, "%s %s %s %s.|%s %s %s %s.", subject, verb, number[0], thing, subject,
                    verb, number[1], thing);
    }
}

static ls_status join(char path[PATH_BYTES], const char *dir, const char *name)
{
    if (strlen(dir) + strlen(name) + 2 > PATH_BYTES)
        return ls_fail(LS_EINVAL, "%s/%s: the path is too long", dir, name);
    text_format(path, PATH_BYTES, "%s/%s", dir, name);
    return LS_OK;
}

static ls_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return ls_fail(LS_EIO, "cannot make the folder %s: %s", path, ls_errno_text(errno));
    return LS_OK;
}

/* Starts espeak-ng, without a shell; whether it succeeded. */
static bool run_program(const char *const *argv)
{
    char output[64];

    return child_run(PROGRAM, (char *const *)(uintptr_t)argv, LIMIT_MS, output, sizeof(output)) ==
           LS_OK;
}

static ls_status speak(const speak_options *options, const char *wav, const char *text)
{
    // -z: without the pause behind a sentence, in which a network would read nothing.
    const char *const argv[] = {PROGRAM, "-z", "-v", options->voice, "-s", SPEED,
                                "-w",    wav,  "--", text,           NULL};

    if (run_program(argv) && access(wav, R_OK) == 0)
        return LS_OK;
    return ls_fail(LS_EIO,
                   "espeak-ng failed to write %s; its own message is printed by: espeak-ng -v %s "
                   "hello",
                   wav, options->voice);
}

static ls_status check_program(void)
{
    const char *const argv[] = {PROGRAM, "--version", NULL};

    if (run_program(argv))
        return LS_OK;
    return ls_fail(LS_ENOTFOUND, "espeak-ng is not installed or does not run; install the Debian "
                                 "package espeak-ng");
}

static ls_status add_line(const speak_options *options, ls_rng *rng, int64_t number,
                          text_buf *metadata)
{
    const size_t begin = metadata->length;
    char wav[PATH_BYTES];
    char name[64];
    const char *text;

    text_append(metadata, "speak-%05lld|", (long long)number);
    if (options->is_short)
        add_phrase(metadata, rng);
    else
        add_sentence(metadata, rng);
    text_append(metadata, "\n");
    LS_TRY(text_status(metadata));
    text_format(name, sizeof(name), "wavs/speak-%05lld.wav", (long long)number);
    LS_TRY(join(wav, options->dir, name));
    text = strrchr(text_str(metadata) + begin, '|') + 1;
    return speak(options, wav, text);
}

ls_status data_speak(const speak_options *options)
{
    text_buf metadata = {0};
    char path[PATH_BYTES];
    ls_status st = LS_OK;
    ls_rng rng;

    LS_TRY(check_program());
    LS_TRY(make_folder(options->dir));
    LS_TRY(join(path, options->dir, "wavs"));
    LS_TRY(make_folder(path));
    LS_TRY(join(path, options->dir, "metadata.csv"));
    if (access(path, F_OK) == 0)
        return ls_fail(LS_EINVAL, "%s exists; give another folder, or remove it", path);
    ls_rng_seed(&rng, (uint64_t)options->seed);
    for (int64_t i = 1; i <= options->count && st == LS_OK; i++)
        st = add_line(options, &rng, i, &metadata);
    if (st == LS_OK)
        st = file_replace(path, text_str(&metadata), metadata.length);
    text_free(&metadata);
    return st;
}
