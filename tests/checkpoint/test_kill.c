/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kill.c - a process that saves over and over is killed at random moments, and one that saves
 * once at every 4 KiB of the file; what stands at the path always loads, and is one whole save.
 * LS_TEST_ROUNDS sets the number of rounds.
 */
#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/temp_files.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_ITEMS         4
#define ITEM_BYTES      (256 * 1024)
#define KILLS_PER_ROUND 8
#define LONGEST_MS      40

static temp_folder folder;
static char path[TEMP_PATH_BYTES];
static unsigned char contents[N_ITEMS][ITEM_BYTES];
static ls_named items[N_ITEMS];

/* Saves with every byte `generation`. */
static ls_status save(unsigned char generation)
{
    memset(contents, generation, sizeof(contents));
    return ls_checkpoint_save(path, items, N_ITEMS, NULL, 0);
}

static void save_in_a_loop(void)
{
    for (unsigned char generation = 1;; generation++) {
        if (save(generation) != LS_OK)
            _exit(1);
    }
}

static void assert_one_generation(void)
{
    ls_checkpoint *c;

    memset(contents, 0xAA, sizeof(contents));
    contents[0][0] = 0x55;
    assert_ok(ls_checkpoint_open(path, &c));
    assert_ok(ls_checkpoint_load(c, items, N_ITEMS, LS_LOAD_STRICT));
    ls_checkpoint_close(c);
    // Every byte equals its neighbour.
    assert_memory_equal((unsigned char *)contents, (unsigned char *)contents + 1,
                        sizeof(contents) - 1);
}

static void kill_a_saver(int after_ms)
{
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        save_in_a_loop();
    (void)poll(NULL, 0, after_ms);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void a_kill_while_saving_leaves_the_old_or_the_new_file(void **state)
{
    const char *rounds_text = getenv("LS_TEST_ROUNDS");
    const uint64_t seed = (uint64_t)ls_now_ns();
    int64_t rounds = 3;
    ls_rng rng;

    LS_UNUSED(state);
    if (rounds_text != NULL)
        assert_ok(text_parse_int(rounds_text, "LS_TEST_ROUNDS", 1, 1000, &rounds));
    print_message("seed %llu\n", (unsigned long long)seed);
    ls_rng_seed(&rng, seed);
    assert_ok(save(0));
    for (int64_t i = 0; i < rounds * KILLS_PER_ROUND; i++) {
        kill_a_saver((int)ls_rng_below(&rng, LONGEST_MS));
        assert_one_generation();
    }
    // Files of killed savers do not prevent the next save.
    assert_ok(save(9));
    assert_one_generation();
}

/* --- cuts --- */

enum { CUT_BYTES = 4096, N_EMPTY = 200, N_CUTS_LEAST = 8 };

/* A list whose files have one content in each generation, and are cut in their data or header. */
typedef struct cut_list {
    ls_named items[N_EMPTY];
    char names[N_EMPTY][16];
    unsigned char data[N_ITEMS][3 * CUT_BYTES];
    int n;
} cut_list;

static void make_list(cut_list *l, int n, size_t bytes)
{
    l->n = n;
    for (int i = 0; i < n; i++) {
        text_format(l->names[i], sizeof(l->names[i]), "item %d", i);
        l->items[i] =
            (ls_named){.name = l->names[i], .bytes = l->data[i % N_ITEMS], .n_bytes = bytes};
    }
}

static ls_status save_list(cut_list *l, const char *generation)
{
    memset(l->data, generation[0], sizeof(l->data));
    return ls_checkpoint_save(path, l->items, l->n, &(ls_meta){"generation", generation}, 1);
}

static void assert_generation(cut_list *l, const char *generation)
{
    ls_checkpoint *c;

    memset(l->data, 0, sizeof(l->data));
    assert_ok(ls_checkpoint_open(path, &c));
    assert_ok(ls_checkpoint_load(c, l->items, l->n, LS_LOAD_STRICT));
    assert_string_equal(ls_checkpoint_meta(c, "generation"), generation);
    ls_checkpoint_close(c);
    for (int i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->items[i].n_bytes; k++)
            assert_int_equal(((const char *)l->items[i].bytes)[k], generation[0]);
}

static int count_files(void)
{
    DIR *d = opendir(folder.path);
    int n = 0;

    assert_non_null(d);
    for (const struct dirent *entry; (entry = file_next_entry(d)) != NULL;)
        n += entry->d_name[0] != '.';
    assert_int_equal(closedir(d), 0);
    return n;
}

/* Saves in a child that can write `most` bytes: behind them a write ends it by SIGXFSZ, or where it
 * ignores that, fails. Returns the child's status. */
static int save_cut(cut_list *l, size_t most, bool crashes)
{
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = most};
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) != 0 ||
            setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
            signal(SIGXFSZ, crashes ? SIG_DFL : SIG_IGN) == SIG_ERR)
            _exit(9);
        switch (save_list(l, "2")) {
        case LS_OK:
            _exit(0);
        case LS_EIO:
            _exit(1);
        default:
            _exit(8);
        }
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Cuts at 0, 4 KiB, 8 KiB, ... until the file is whole. */
static void cut_everywhere(cut_list *l, bool crashes)
{
    int n_cuts = 0;
    int status;

    assert_ok(save_list(l, "1"));
    while ((status = save_cut(l, (size_t)n_cuts * CUT_BYTES, crashes)) != 0) {
        if (crashes)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        assert_generation(l, "1");
        // A crash leaves one temporary file, which the next save replaces; a failure leaves none.
        assert_int_equal(count_files(), crashes ? 2 : 1);
        n_cuts++;
    }
    assert_true(n_cuts >= N_CUTS_LEAST);
    assert_generation(l, "2");
    assert_int_equal(count_files(), 1);
}

static void a_cut_at_every_4_kib_leaves_the_old_file(void **state)
{
    cut_list *l = calloc(1, sizeof(*l));

    LS_UNUSED(state);
    assert_non_null(l);
    for (int crashes = 0; crashes < 2; crashes++) {
        make_list(l, N_ITEMS, sizeof(l->data[0]));
        cut_everywhere(l, crashes);
        make_list(l, N_EMPTY, 0); // all of the file is its header
        cut_everywhere(l, crashes);
    }
    free(l);
}

static int set_up(void **state)
{
    static const char *const names[N_ITEMS] = {"a", "b", "c", "d"};

    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "model.safetensors", path);
    for (int i = 0; i < N_ITEMS; i++)
        items[i] = (ls_named){.name = names[i], .bytes = contents[i], .n_bytes = ITEM_BYTES};
    return 0;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_while_saving_leaves_the_old_or_the_new_file),
        cmocka_unit_test(a_cut_at_every_4_kib_leaves_the_old_file),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
