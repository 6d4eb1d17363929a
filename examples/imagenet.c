/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imagenet.c - trains a network on a folder of images (train/CLASS/NAME.jpg, val/CLASS/NAME.jpg),
 * with the flags of PyTorch's imagenet example.
 *
 *   imagenet DIR -a resnet18                                   one process
 *   imagenet DIR --dist-url tcp://NODE0:29500 --multiprocessing-distributed --world-size 2 --rank 0
 *                                            on each of two nodes, with --rank 1 on the other
 *   lockstep run -H node0:8,node1:8 imagenet DIR
 *   mpirun -np 8 imagenet DIR --dist-backend mpi
 */
#include <lockstep/lockstep.h>

#include "models/architectures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The flags of this program, after those of all training programs. */
typedef struct settings {
    ls_train_flags common;
    const char *arch;
    int64_t image_size;
    int dummy;
    int64_t world_size; /* number of nodes */
    int64_t rank;       /* index of this node */
    const char *dist_url;
    int64_t gpu;
    char card[32]; /* the device of --gpu */
    int spawns;    /* --multiprocessing-distributed: start the ranks of this node */
    int64_t nproc;
    int64_t node_workers;
    int net; /* index of the architecture */
    ls_init_options init;
} settings;

/* --- data --- */

/* Training images: random crop and flip; test images: centre crop. */
static ls_status augment(const settings *s, int training, ls_dataset *set)
{
    ls_augment how;

    ls_augment_imagenet(training, (int)s->image_size, &how);
    how.seed = (uint64_t)s->common.seed;
    return ls_dataset_augment(set, &how);
}

static ls_status open_folder(const settings *s, const char *split, int training,
                             const ls_dataset *like, ls_dataset **out)
{
    char path[4096];
    ls_status st;

    snprintf(path, sizeof(path), "%s/%s", s->common.data, split);
    LS_TRY(ls_dataset_open_folder(path, like, out));
    st = augment(s, training, *out);
    if (st != LS_OK)
        ls_dataset_close(*out);
    return st;
}

/* Synthetic images, as many as in ImageNet. */
static ls_status open_dummy(const settings *s, int training, ls_dataset **out)
{
    const ls_synthetic_options images = {
        .size = sizeof(images),
        .count = training ? 1281167 : 50000,
        .height = (int)s->image_size,
        .seed = (uint64_t)s->common.seed + (training ? 0 : 1),
    };

    return ls_dataset_open_synthetic(&images, out);
}

static ls_status open_split(const settings *s, const char *split, int training,
                            const ls_dataset *like, ls_dataset **out)
{
    return s->dummy ? open_dummy(s, training, out) : open_folder(s, split, training, like, out);
}

/* An evaluation needs no training set. */
static ls_status open_data(const settings *s, ls_run *run, int *classes)
{
    ls_dataset *train_set = NULL, *test_set;

    if (!s->common.evaluate) {
        LS_TRY(open_split(s, "train", 1, NULL, &train_set));
        LS_TRY(ls_run_train_on_take(run, train_set));
    }
    LS_TRY(open_split(s, "val", 0, train_set, &test_set));
    *classes = ls_dataset_classes(test_set);
    return ls_run_test_on_take(run, test_set);
}

/* --- training --- */

static ls_tensor *loss_of(void *net, ls_run *run, const ls_batch *batch)
{
    return ls_run_classify(run, net_forward(net, ls_run_tape(run), batch->x), batch->y);
}

static ls_status loop(ls_run *run, ls_comm *comm, network *net)
{
    LS_TRY(ls_run_distribute(run, comm, NULL)); /* data-parallel training needs only this line */
    LS_TRY(ls_run_start(run, net_forward, net));
    ls_run_train(run, loss_of, net);
    return LS_OK;
}

/* Batch size and workers are given per node and divided among its ranks. */
static ls_status share_node(settings *s, const ls_comm *comm)
{
    const int ranks = ls_comm_local_size(comm);

    s->common.batch_size = s->common.node_batch / ranks;
    s->common.workers = (s->node_workers + ranks - 1) / ranks;
    if (s->common.batch_size == 0)
        return ls_train_refuse("-b %lld: the %d ranks of this node need at least one image each",
                               (long long)s->common.node_batch, ranks);
    return LS_OK;
}

/* One rank. */
static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    settings *s = arg;
    network *net;
    int classes;
    ls_status st;

    LS_TRY(share_node(s, comm));
    LS_TRY(open_data(s, run, &classes));
    net = net_create(ls_run_model(run), s->net, classes, (int)s->image_size);
    if (net == NULL)
        return ls_train_refuse("no memory for the network");
    st = loop(run, comm, net);
    net_destroy(net);
    return st;
}

/* --- flags --- */

static int is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* In PyTorch's example --pretrained has no value and downloads weights. */
static ls_status refuse_pretrained(const char *arch)
{
    char from[64], to[64], command[768];

    snprintf(from, sizeof(from), "torchvision:%s", arch);
    snprintf(to, sizeof(to), "%s.safetensors", arch);
    return ls_train_refuse(
        "--pretrained needs a file of weights, because nothing is downloaded; to "
        "create one, with a Python that has torchvision: %s",
        ls_checkpoint_conversion(from, to, command, sizeof(command)));
}

static ls_status check_paths(const settings *s)
{
    const char *weights = s->common.init;

    if (weights != NULL && (weights[0] == 0 || is_folder(weights)))
        return refuse_pretrained(s->arch);
    if (!s->dummy && !is_folder(s->common.data))
        return ls_train_refuse("DIR: no folder %.400s; give the folder with train/ and val/, or "
                               "--dummy",
                               s->common.data);
    return LS_OK;
}

/* The cards of this node that ranks can compute on; 0: they compute on the processor. */
static ls_status count_cards(const settings *s, int *n)
{
    const ls_device_options device = {.size = sizeof(device), .name = s->common.device};

    return ls_device_count(&device, n);
}

/* --gpu: the card of a program that starts no ranks. */
static ls_status choose_card(settings *s)
{
    const char *device = s->common.device != NULL ? s->common.device : "cpu";
    int n = 0;

    if (s->gpu < 0)
        return LS_OK;
    LS_TRY(count_cards(s, &n));
    if (s->spawns || n == 0) {
        ls_log(LS_LOG_WARN, "imagenet", "ignoring --gpu %lld: %s", (long long)s->gpu,
               n == 0 ? "the device is the processor" : "each rank has a card of its own");
        return LS_OK;
    }
    snprintf(s->card, sizeof(s->card), "%.20s:%lld", strcmp(device, "auto") == 0 ? "cuda" : device,
             (long long)s->gpu);
    s->common.device = s->card;
    return LS_OK;
}

static ls_status check(void *arg)
{
    settings *s = arg;
    char problem[ARCHITECTURE_LIST_BYTES + 128];

    s->net = architecture_find(s->arch, problem, sizeof(problem));
    if (s->net < 0)
        return ls_train_refuse("--arch: %s", problem);
    if (s->world_size > 1 && (s->rank < 0 || s->rank >= s->world_size))
        return ls_train_refuse("--world-size %lld needs --rank, the index of this node from 0",
                               (long long)s->world_size);
    if (s->nproc > 0)
        s->spawns = 1;
    LS_TRY(choose_card(s));
    if (!s->spawns && s->world_size > 1) { /* one process per node, started by hand */
        s->init.init_method = s->dist_url;
        s->init.world_size = (int)s->world_size;
        s->init.rank = (int)s->rank;
    }
    return check_paths(s);
}

/* As PyTorch's example: one rank for each card of this node. */
static ls_status count_ranks(const settings *s, int *n)
{
    *n = (int)s->nproc;
    if (*n == 0)
        LS_TRY(count_cards(s, n));
    if (*n == 0)
        *n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return LS_OK;
}

/* *n: ranks to start on this node; 0 when a launcher has started this process. *spawn: the nodes,
 * and the address of node 0. */
static ls_status choose_ranks(void *arg, ls_spawn_options *spawn, int *n)
{
    settings *s = arg;
    const char *scheme = "tcp://";

    LS_TRY(ls_train_local_ranks(&s->common, n)); /* -n -g -i */
    spawn->nodes = (int)s->common.nodes;
    spawn->per_node = s->common.per_node;
    spawn->node = (int)s->common.node_id;
    spawn->master = s->common.master;
    if (*n > 0 || !s->spawns)
        return LS_OK;
    if (getenv("LOCKSTEP_RANK") != NULL)
        return ls_train_refuse("--multiprocessing-distributed starts ranks, but this process is "
                               "already rank %s of a job; omit it",
                               getenv("LOCKSTEP_RANK"));
    LS_TRY(count_ranks(s, n));
    spawn->nodes = s->world_size > 1 ? (int)s->world_size : 1;
    LS_TRY(ls_backend_check(s->common.backend, *n * spawn->nodes));
    spawn->node = spawn->nodes > 1 ? (int)s->rank : 0;
    spawn->per_node = NULL; /* each node has its own --nproc */
    if (strncmp(s->dist_url, scheme, strlen(scheme)) == 0)
        spawn->master = s->dist_url + strlen(scheme);
    else if (spawn->nodes > 1 && strcmp(s->dist_url, "env://") != 0)
        return ls_train_refuse(
            "--dist-url %s: --multiprocessing-distributed on several nodes needs tcp://HOST:PORT",
            s->dist_url);
    return LS_OK;
}

static int run(settings *s, int argc, char **argv)
{
    ls_train_flags *f = &s->common;
    char names[ARCHITECTURE_LIST_BYTES] = "`NAME` ";
    const ls_flag own[] = {
        {"Flags of PyTorch's imagenet example", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"DIR", 0, LS_FLAG_ARGUMENT, &f->data, 0, 0, "folder with train/CLASS/ and val/CLASS/"},
        {"arch", 'a', LS_FLAG_TEXT, &s->arch, 0, 0, names},
        {"batch-size", 'b', LS_FLAG_INT, &f->node_batch, 1, 1 << 24,
         "images per step of one node, divided among its ranks"},
        {"workers", 'j', LS_FLAG_INT, &s->node_workers, 0, 4096,
         "loader threads of one node, divided among its ranks"},
        {"learning-rate", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "as --lr"},
        {"wd", 0, LS_FLAG_REAL, &f->weight_decay, 0, 1e6, "weight decay"},
        {"pretrained", 0, LS_FLAG_OPTIONAL_TEXT, &f->init, 0, 0,
         "`FILE` load initial weights, with torchvision's names"},
        {"image-size", 0, LS_FLAG_INT, &s->image_size, 1, 4096,
         "`PIXELS` height and width of the crops; evaluation resizes to 256/224 of it, crops the "
         "center, and normalizes with ImageNet's mean and std"},
        {"dummy", 0, LS_FLAG_BOOL, &s->dummy, 0, 0, "use synthetic images, to measure speed"},
        {"world-size", 0, LS_FLAG_INT, &s->world_size, -1, 65536, "number of nodes"},
        {"rank", 0, LS_FLAG_INT, &s->rank, -1, 65535, "index of this node, from 0"},
        {"dist-url", 0, LS_FLAG_TEXT, &s->dist_url, 0, 0,
         "`URL` tcp://HOST:PORT of node 0, file://PATH, or env://"},
        {"dist-backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0, "`NAME` native, nccl, mpi, gloo"},
        {"multiprocessing-distributed", 0, LS_FLAG_BOOL, &s->spawns, 0, 0,
         "start the ranks of this node"},
        {"nproc", 0, LS_FLAG_INT, &s->nproc, 0, 4096,
         "start so many ranks on this node; 0 = one per GPU, on CPUs one per core"},
        {"gpu", 0, LS_FLAG_INT, &s->gpu, -1, 4096,
         "number of the card, with --device cuda and one rank"},
        {"no-accel", 0, LS_FLAG_BOOL, &f->no_accel, 0, 0, "compute on the CPU"},
    };
    const char *const local[] = {"world-size", "rank", "dist-url", "multiprocessing-distributed",
                                 "nproc",      "gpu",  NULL};
    const ls_train_program program = {
        .size = sizeof(program),
        .name = "imagenet",
        .summary = "Trains a network on a folder of images.",
        .flags = f,
        .own = own,
        .n_own = sizeof(own) / sizeof(own[0]),
        .init = &s->init,
        .check = check,
        .place = choose_ranks,
        .train = train,
        .arg = s,
        .local = local,
    };

    architecture_list(names + strlen(names), sizeof(names) - strlen(names));
    return ls_train_main(&program, argc, argv);
}

int main(int argc, char **argv)
{
    settings s = {
        .common = {.epochs = 90,
                   .node_batch = 256,
                   .lr = 0.1,
                   .momentum = 0.9,
                   .weight_decay = 1e-4,
                   .schedule = "step", /* a tenth every 30 epochs */
                   .lr_step_size = 30,
                   .data = "imagenet",
                   .print_freq = 10,
                   .save = "checkpoint.safetensors",
                   .save_best = "model_best.safetensors"},
        .arch = "resnet18",
        .image_size = 224,
        .world_size = -1,
        .rank = -1,
        .dist_url = "env://",
        .gpu = -1,
        .node_workers = 4,
        .init = {.size = sizeof(s.init)},
    };

    return run(&s, argc, argv);
}
