/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_data.c - lockstep data: describes a data set, writes it in another format, or makes a speech
 * set.
 */
#include "cli/cli.h"

#include "cli/data/data_report.h"
#include "cli/data/data_speak.h"
#include "data/convert.h"
#include "host/cores.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WORDS = 3, N_SPLITS = 2 };

typedef struct data_flags {
    int64_t threads;
    int quick;
    int classes;
    int json;
    const char *to;
    const char *from;
    int64_t image_size;
    int64_t per_class;
    int64_t jpeg;
    speak_options speak; /* without dir */
    int help;
    char **words; /* arguments that are not flags */
    int n_words;
} data_flags;

/* --- formats and their splits --- */

typedef struct data_kind {
    const char *name;
    const char *splits[N_SPLITS]; /* for training, for evaluation */
} data_kind;

static const data_kind kinds[] = {
    {"idx", {"train", "t10k"}}, {"cifar", {"train", "test"}}, {"folder", {"train", "val"}}};

static const data_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < LS_COUNT_OF(kinds); i++)
        if (text_equal(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static ls_status join(char *buf, size_t n, const char *dir, const char *name)
{
    if (strlen(dir) + strlen(name) + 2 > n)
        return ls_fail(LS_EINVAL, "%s/%s: the path is too long", dir, name);
    text_format(buf, n, "%s/%s", dir, name);
    return LS_OK;
}

/* Opens one split; `like` (may be NULL) is the first one of the same set. */
static ls_status open_split(const data_kind *kind, const char *dir, int split,
                            const ls_dataset *like, ls_dataset **out)
{
    char path[4096];

    if (text_equal(kind->name, "idx"))
        return ls_dataset_open_mnist(dir, kind->splits[split], out);
    if (text_equal(kind->name, "cifar"))
        return ls_dataset_open_cifar(dir, kind->splits[split], out);
    LS_TRY(join(path, sizeof(path), dir, kind->splits[split]));
    return ls_dataset_open_folder(path, like, out);
}

/* --- describing --- */

typedef struct report {
    const data_flags *flags;
    json_writer json;
    text_buf json_text;
    bool is_terminal;
    bool has_failed; /* something is broken or missing */
} report;

static void print_bad(void *arg, const char *text)
{
    char printable[LS_ERROR_BYTES];

    LS_UNUSED(arg);
    text_printable(printable, sizeof(printable), text);
    print_error("%s\n", printable);
}

static void print_progress(void *arg, size_t n_done, size_t n_all)
{
    const report *r = arg;

    if (r->is_terminal)
        print_error("%zu of %zu image%s\n", n_done, n_all, text_plural((int64_t)n_all));
}

static ls_status describe(report *r, const char *name, const ls_dataset *d)
{
    const describe_options options = {.threads = (int)r->flags->threads,
                                      .is_quick = r->flags->quick != 0,
                                      .bad = print_bad,
                                      .progress = print_progress,
                                      .arg = r};
    dataset_facts facts;
    ls_status st = dataset_describe(d, &options, &facts);

    if (st == LS_OK && r->flags->json)
        data_report_json(&r->json, name, d, &facts);
    else if (st == LS_OK)
        data_report_print(name, d, &facts, r->flags->classes != 0);
    r->has_failed = r->has_failed || facts.n_bad > 0;
    dataset_facts_free(&facts);
    return st;
}

/* A set of one split: an image folder that has no train/. */
static ls_status describe_single(report *r, const char *dir)
{
    ls_dataset *d;
    ls_status st;

    LS_TRY(ls_dataset_open_folder(dir, NULL, &d));
    st = describe(r, dir, d);
    ls_dataset_close(d);
    return st;
}

/* If one split cannot be opened, prints the error and describes the other one. */
static ls_status describe_splits(report *r, const data_kind *kind, const char *dir)
{
    ls_dataset *sets[N_SPLITS] = {NULL, NULL};
    ls_status st = LS_OK;

    for (int i = 0; i < N_SPLITS && st == LS_OK; i++) {
        char name[4096];

        if (open_split(kind, dir, i, sets[0], &sets[i]) != LS_OK) {
            r->has_failed = true;
            print_error("lockstep data: %s\n", ls_last_error());
            continue;
        }
        st = join(name, sizeof(name), dir, kind->splits[i]);
        if (st == LS_OK)
            st = describe(r, name, sets[i]);
    }
    for (int i = 0; i < N_SPLITS; i++)
        ls_dataset_close(sets[i]);
    return st;
}

static int cmd_describe(const data_flags *flags, const data_kind *kind)
{
    const char *dir = flags->words[1];
    report r = {.flags = flags, .is_terminal = isatty(STDERR_FILENO) == 1};
    char train[4096];
    ls_status st;

    json_begin(&r.json, &r.json_text);
    json_open(&r.json, NULL, '[');
    st = join(train, sizeof(train), dir, "train");
    if (st == LS_OK)
        st = text_equal(kind->name, "folder") && !is_folder(train) ? describe_single(&r, dir)
                                                                   : describe_splits(&r, kind, dir);
    json_close(&r.json, ']');
    if (st == LS_OK)
        st = text_status(&r.json_text);
    if (st == LS_OK && flags->json)
        print_out("%s\n", text_str(&r.json_text));
    text_free(&r.json_text);
    if (st != LS_OK)
        return print_failure("data", st);
    return r.has_failed ? 1 : 0;
}

/* --- converting --- */

static ls_status convert_split(const data_flags *flags, const data_kind *to, const ls_dataset *d,
                               int split)
{
    const convert_options options = {.side = (int)flags->image_size,
                                     .per_class = (size_t)flags->per_class,
                                     .jpeg_quality = (int)flags->jpeg};
    const char *dir = flags->words[2];
    size_t n = 0;
    char path[4096];

    LS_TRY(join(path, sizeof(path), dir, to->splits[split]));
    if (text_equal(to->name, "folder"))
        LS_TRY(convert_to_folder(d, &options, path, &n));
    else
        LS_TRY(convert_to_cifar(d, &options, dir, split == 0, &n));
    print_out("%s: %zu image%s\n", path, n, text_plural((int64_t)n));
    return LS_OK;
}

static ls_status convert(const data_flags *flags, const data_kind *from, const data_kind *to)
{
    ls_dataset *sets[N_SPLITS] = {NULL, NULL};
    ls_status st = LS_OK;

    if (mkdir(flags->words[2], 0777) != 0 && errno != EEXIST)
        return ls_fail(LS_EIO, "cannot make the folder %s: %s", flags->words[2],
                       ls_errno_text(errno));
    for (int i = 0; i < N_SPLITS && st == LS_OK; i++) {
        st = open_split(from, flags->words[1], i, sets[0], &sets[i]);
        if (st == LS_OK)
            st = convert_split(flags, to, sets[i], i);
    }
    for (int i = 0; i < N_SPLITS; i++)
        ls_dataset_close(sets[i]);
    return st;
}

static ls_status check_convert(const data_flags *flags, const data_kind *from, const data_kind *to)
{
    if (flags->n_words != 3)
        return ls_fail(LS_EINVAL, "convert takes two folders: SOURCE and DESTINATION");
    if (from == NULL)
        return ls_fail(LS_EINVAL, "--from %s: must be idx, cifar or folder", flags->from);
    if (to == NULL || text_equal(to->name, "idx"))
        return ls_fail(LS_EINVAL, "--to %s: must be cifar or folder", flags->to);
    if (text_equal(to->name, "cifar") && flags->jpeg > 0)
        return ls_fail(LS_EINVAL, "--jpeg needs --to folder: CIFAR files hold raw pixels");
    if (text_equal(to->name, "cifar") && flags->image_size != 0 && flags->image_size != 32)
        return ls_fail(LS_EINVAL, "--image-size %lld: CIFAR images are 32 x 32",
                       (long long)flags->image_size);
    return LS_OK;
}

static int cmd_convert(const data_flags *flags)
{
    const data_kind *from = find_kind(flags->from);
    const data_kind *to = find_kind(flags->to);
    ls_status st = check_convert(flags, from, to);

    if (st == LS_OK)
        st = convert(flags, from, to);
    return st == LS_OK ? 0 : print_failure("data", st);
}

static int cmd_speak(const data_flags *flags)
{
    speak_options options = flags->speak;
    ls_status st;

    options.dir = flags->words[1];
    st = data_speak(&options);
    if (st != LS_OK)
        return print_failure("data", st);
    print_out("%s: %lld sentence%s\n", options.dir, (long long)options.count,
              text_plural(options.count));
    return 0;
}

/* --- the command --- */

static int dispatch(const data_flags *flags)
{
    const char *what = flags->n_words > 0 ? flags->words[0] : "";
    const data_kind *kind = find_kind(what);

    if (text_equal(what, "convert"))
        return cmd_convert(flags);
    if (kind != NULL && flags->n_words == 2)
        return cmd_describe(flags, kind);
    if (text_equal(what, "speak") && flags->n_words == 2)
        return cmd_speak(flags);
    (void)ls_fail(LS_EINVAL, "expected idx DIR, cifar DIR, folder DIR, convert SOURCE DESTINATION "
                             "or speak DIR; see lockstep data --help");
    return print_failure("data", LS_EINVAL);
}

int cmd_data(int argc, char **argv)
{
    data_flags f = {.threads = ls_usable_cores(NULL),
                    .to = "folder",
                    .from = "idx",
                    .speak = {.voice = "en-us", .count = 300}};
    const ls_flag table[] = {
        {"Describing a data set", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"threads", 'j', LS_FLAG_INT, &f.threads, 1, 256, "number of threads that read images"},
        {"quick", 0, LS_FLAG_BOOL, &f.quick, 0, 0, "read image sizes only, do not decode images"},
        {"classes", 0, LS_FLAG_BOOL, &f.classes, 0, 0, "list every class"},
        {"json", 0, LS_FLAG_BOOL, &f.json, 0, 0, "print JSON"},
        {"Converting a data set", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"from", 0, LS_FLAG_TEXT, &f.from, 0, 0, "`FORMAT` of SOURCE: idx, cifar, folder"},
        {"to", 0, LS_FLAG_TEXT, &f.to, 0, 0, "`FORMAT` of DESTINATION: cifar, folder"},
        {"image-size", 0, LS_FLAG_INT, &f.image_size, 0, 16384,
         "`PIXELS` height and width; 0 = unchanged"},
        {"per-class", 0, LS_FLAG_INT, &f.per_class, 0, 1e9, "images per class; 0 = all"},
        {"jpeg", 0, LS_FLAG_INT, &f.jpeg, 0, 100,
         "`QUALITY` write JPEG of this quality, 1 to 100; 0 = PNG"},
        {"Making a speech data set with espeak-ng", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"count", 0, LS_FLAG_INT, &f.speak.count, 1, 99999, "number of sentences"},
        {"voice", 0, LS_FLAG_TEXT, &f.speak.voice, 0, 0, "`NAME` of espeak-ng's voice"},
        {"seed", 0, LS_FLAG_INT, &f.speak.seed, 0, 1e15, "decides the sentences"},
        {"short", 0, LS_FLAG_BOOL, &f.speak.is_short, 0, 0, "phrases of two or three words"},
        {"All", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"help", 'h', LS_FLAG_BOOL, &f.help, 0, 0, "print this text"},
    };
    const ls_flags flags = {
        .size = sizeof(flags),
        .program = "lockstep data",
        .usage = "idx|cifar|folder|speak DIR [flags], or convert SOURCE DESTINATION [flags]",
        .summary = "Describes a data set: images, sizes, classes, broken files (exit code 1), mean "
                   "and standard deviation; converts it to another format; or makes a speech data "
                   "set.",
        .tables = {table},
        .n = {LS_COUNT_OF(table)},
        .takes_rest = 1};
    ls_status st = parse_with_files(&flags, argc, argv, &f.n_words);

    f.words = argv;
    if (st == LS_OK && f.n_words > MAX_WORDS)
        st = ls_fail(LS_EINVAL, "%s: too many arguments", argv[MAX_WORDS]);
    if (st == LS_OK && f.help)
        return print_help(&flags);
    return st == LS_OK ? dispatch(&f) : print_failure("data", st);
}
