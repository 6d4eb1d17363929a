/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_whole_files.c - tests that the files of a run are what was written: a run that is killed
 * while it saves leaves old or new ones, and a run does not load a file that has changed.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "base/text.h"
#include "data/temp_files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CUT_BYTES = 4096, STEPS_AN_EPOCH = (SMALL_TRAIN + 15) / 16 };

static small_result *result; /* of the last run, in shared memory */

/* --- a process that is killed while it writes --- */

static int64_t left = INT64_MAX; /* until this process is killed */

/* Of `bytes` that are to be written, those before the kill. */
static size_t spend(size_t bytes)
{
    const size_t most = left < (int64_t)bytes ? (size_t)left : bytes;

    left -= left == INT64_MAX ? 0 : (int64_t)most;
    return most;
}

/* Instead of libc's, for regular files. */
ssize_t write(int fd, const void *src, size_t bytes)
{
    struct stat info;
    const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const size_t most = is_file ? spend(bytes) : bytes;
    const ssize_t put = syscall(SYS_write, fd, src, most);

    if (most < bytes)
        (void)raise(SIGKILL);
    return put;
}

/* Counts as a step of the cuts, so that there is one between the last byte and the sync. */
int fsync(int fd)
{
    if (spend(CUT_BYTES) < CUT_BYTES)
        (void)raise(SIGKILL);
    return (int)syscall(SYS_fsync, fd);
}

/* Runs in a child, which starts threads of its own, and is killed when it has written `most` bytes.
 * Returns its status. */
static int run_child(const small_job *job, int64_t most)
{
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);

        if (dup2(null, STDOUT_FILENO) < 0)
            _exit(1);
        left = most;
        *result = small_run(job);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static ls_status run(const small_job *job)
{
    assert_int_equal(run_child(job, INT64_MAX), 0);
    return result->status;
}

/* A job whose files are those of one epoch. */
static small_job save_one_epoch(const char *path, int batch_norm)
{
    small_job job = {.flags = small_flags(small_dir), .batch_norm = batch_norm};

    job.flags.save = path;
    job.flags.epochs = 1;
    assert_int_equal(run(&job), LS_OK);
    return job;
}

typedef struct file_bytes {
    unsigned char *data;
    size_t n;
} file_bytes;

static file_bytes read_bytes(const char *path)
{
    file_bytes f;

    f.data = temp_read(path, &f.n);
    return f;
}

static void assert_whole(const char *path)
{
    ls_checkpoint *c;
    int has_digests = 0;

    assert_ok(ls_checkpoint_open(path, &c));
    assert_ok(ls_checkpoint_verify(c, &has_digests));
    assert_int_equal(has_digests, 1);
    ls_checkpoint_close(c);
}

/* A run saves weights, best weights and state. */
static void a_run_killed_at_any_4_kib_of_a_save_leaves_whole_files(void **state)
{
    static const char *const names[] = {"cut.safetensors", "cut.best.safetensors",
                                        "cut.resume.safetensors"};
    small_job job = save_one_epoch(path_in(names[0]), 1);
    char paths[3][128];
    file_bytes before[3];
    int n = 0;
    int status;

    (void)state;
    for (int i = 0; i < 3; i++) {
        text_format(paths[i], sizeof(paths[i]), "%s", path_in(names[i]));
        before[i] = read_bytes(paths[i]);
    }
    job.flags.save = paths[0];
    job.flags.resume = "";
    job.flags.epochs = 2;
    while ((status = run_child(&job, (int64_t)n * CUT_BYTES)) != 0) {
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        for (int i = 0; i < 3; i++) {
            assert_whole(paths[i]);
            temp_write(paths[i], before[i].data, before[i].n);
        }
        n++;
    }
    assert_true(n > 5);
    assert_int_equal(result->status, LS_OK);
    assert_int_equal(result->state.step, 2 * STEPS_AN_EPOCH);
    for (int i = 0; i < 3; i++) {
        assert_whole(paths[i]);
        assert_int_equal(
            size_of(text_format(paths[i], sizeof(paths[i]), "%s.tmp", path_in(names[i]))), -1);
        free(before[i].data);
    }
}

/* Changes a bit behind the header. */
static void damage(const char *path)
{
    file_bytes f = read_bytes(path);

    f.data[8 + f.data[0] + 256U * f.data[1]] ^= 0x10;
    temp_write(path, f.data, f.n);
    free(f.data);
}

static void assert_refused(const small_job *job, const char *path, const char *what)
{
    assert_int_equal(run(job), LS_EFORMAT);
    if (strstr(result->error, path) == NULL || strstr(result->error, what) == NULL ||
        strstr(result->error, "use another save, or load it unchecked (--no-verify)") == NULL)
        fail_msg("%s", result->error);
}

static void a_changed_bit_is_refused_unless_verification_is_off(void **state)
{
    small_job job = save_one_epoch(path_in("bit.safetensors"), 0);

    (void)state;
    damage(path_in("bit.safetensors"));
    damage(path_in("bit.resume.safetensors"));
    job.flags.epochs = 2;
    job.flags.resume = "";
    assert_refused(&job, "bit.resume.safetensors", "the data of model.fc.weight (4, 64) float32");
    job.flags.save = NULL;
    job.flags.resume = NULL;
    job.flags.init = path_in("bit.safetensors");
    assert_refused(&job, "bit.safetensors", "the data of fc.weight (4, 64) float32");
    job.flags.no_verify = 1;
    assert_int_equal(run(&job), LS_OK);
    job.flags.init = NULL;
    job.flags.resume = path_in("bit.safetensors");
    assert_int_equal(run(&job), LS_OK);
    assert_int_equal(result->state.step, 2 * STEPS_AN_EPOCH);
}

/* A position that is not the saved one would train on samples twice. */
static void a_changed_position_is_refused(void **state)
{
    static const char key[] = "\"step\":\"";
    small_job job = save_one_epoch(path_in("step.safetensors"), 0);
    const char *resume = path_in("step.resume.safetensors");
    file_bytes f = read_bytes(resume);
    unsigned char *at = memmem(f.data, f.n, key, strlen(key));

    (void)state;
    assert_non_null(at);
    at[strlen(key)] ^= 1;
    temp_write(resume, f.data, f.n);
    free(f.data);
    job.flags.resume = "";
    assert_refused(&job, "step.resume.safetensors", "the header (names, types, shapes, metadata)");
}

static int set_up(void **state)
{
    result = mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(result != MAP_FAILED);
    return small_dir_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_killed_at_any_4_kib_of_a_save_leaves_whole_files),
        cmocka_unit_test(a_changed_bit_is_refused_unless_verification_is_off),
        cmocka_unit_test(a_changed_position_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, small_dir_remove);
}
