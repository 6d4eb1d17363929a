/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imagenet - trains a network on a folder of images (train/CLASS/NAME.jpg, val/CLASS/NAME.jpg), with the flags of PyTorch's example.
 *
 *   imagenet DIR -a resnet18                                   one process
 *   imagenet DIR --dist-url tcp://NODE0:29500 --multiprocessing-distributed --world-size 2 --rank 0
 *                                                              on each of two nodes, with --rank 1 on the other
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

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ls_status try_ = (call);                                                                   \
        if (try_ != LS_OK)                                                                         \
            return try_;                                                                           \
    } while (0)

/* What this program takes besides the flags of all training programs. */
typedef struct settings {
    ls_train_flags common;
    const char *arch;
    int64_t image_size;
    int dummy;
    int64_t world_size; /* nodes that this is started on */
    int64_t rank;       /* which of them this one is */
    const char *dist_url;
    int64_t gpu;
    int no_accel; /* --no-accel: as --device cpu */
    int spawns;   /* --multiprocessing-distributed: this program starts the ranks of its node */
    int64_t nproc;
    int64_t node_batch; /* images of one node in one step */
    int64_t node_workers;
    int net; /* number of the architecture */
} settings;

/* --- data --- */

/* Training images are cropped at random and flipped; of the others the middle is taken. */
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
    TRY(ls_dataset_open_folder(path, like, out));
    st = augment(s, training, *out);
    if (st != LS_OK)
        ls_dataset_close(*out);
    return st;
}

/* As many images as ImageNet has, made up. */
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

/* The folder to learn from is not needed for an evaluation alone. */
static ls_status open_data(const settings *s, ls_run *run, int *classes)
{
    ls_dataset *images = NULL, *unseen;

    if (!s->common.evaluate) {
        TRY(open_split(s, "train", 1, NULL, &images));
        TRY(ls_run_train_on_take(run, images));
    }
    TRY(open_split(s, "val", 0, images, &unseen));
    *classes = ls_dataset_classes(unseen);
    return ls_run_test_on_take(run, unseen);
}

/* --- training --- */

/* The caller destroys the net. */
static ls_status train(ls_run *run, ls_comm *comm, const settings *s, network **net)
{
    ls_batch batch;
    int classes;

    TRY(open_data(s, run, &classes));
    *net = net_create(ls_run_model(run), s->net, classes, (int)s->image_size);
    if (*net == NULL)
        return ls_train_refuse("no memory for the network");

    /* This line, with ls_init() and ls_comm_destroy() below, is what makes it data-parallel. */
    TRY(ls_run_distribute(run, comm, NULL));
    TRY(ls_run_start(run, net_forward, *net));
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = net_forward(*net, ls_run_tape(run), batch.x);
        ls_run_step(run, ls_run_classify(run, logits, batch.y));
    }
    return LS_OK;
}

/* Batch and workers are given for a node; its ranks share them. */
static ls_status share_node(settings *s, const ls_comm *comm)
{
    const int ranks = ls_comm_local_size(comm);

    s->common.batch_size = s->node_batch / ranks;
    s->common.workers = (s->node_workers + ranks - 1) / ranks;
    if (s->common.batch_size == 0)
        return ls_train_refuse("-b %lld: the %d ranks of this node need one image each",
                               (long long)s->node_batch, ranks);
    return LS_OK;
}

/* One rank, from its place in the job to its goodbye. */
static ls_status run_rank(int local_rank, void *arg)
{
    settings *s = arg;
    ls_init_options place = {.size = sizeof(place), .backend = s->common.backend};
    ls_comm *comm = NULL;
    ls_run *run = NULL;
    network *net = NULL;
    ls_status st;

    (void)local_rank;                      /* ls_init() knows */
    if (!s->spawns && s->world_size > 1) { /* one process a node, each started by hand */
        place.init_method = s->dist_url;
        place.world_size = (int)s->world_size;
        place.rank = (int)s->rank;
    }
    st = ls_init(&place, &comm);
    if (st == LS_OK)
        st = share_node(s, comm);
    if (st == LS_OK)
        st = ls_run_open(&s->common, &run);
    if (st == LS_OK)
        st = train(run, comm, s, &net);
    st = ls_run_close(run, st);
    net_destroy(net);
    ls_comm_destroy(comm);
    return st;
}

/* --- flags --- */

static int is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* In PyTorch's example --pretrained has no value and downloads weights. */
static ls_status check_paths(const settings *s)
{
    const char *weights = s->common.init;

    if (weights != NULL && (weights[0] == 0 || is_folder(weights)))
        return ls_train_refuse(
            "--pretrained needs the name of a file of weights, because nothing is downloaded; make "
            "one: python3 -c \"import torchvision, safetensors.torch; safetensors.torch.save_file("
            "torchvision.models.%s(weights='DEFAULT').state_dict(), '%s.safetensors')\"",
            s->arch, s->arch);
    if (!s->dummy && !is_folder(s->common.data))
        return ls_train_refuse("DIR: there is no folder %.400s; give the folder with train/ and "
                               "val/, or --dummy",
                               s->common.data);
    return LS_OK;
}

static ls_status check(settings *s)
{
    char problem[ARCHITECTURE_LIST_BYTES + 128];

    s->net = architecture_find(s->arch, problem, sizeof(problem));
    if (s->net < 0)
        return ls_train_refuse("--arch: %s", problem);
    if (s->no_accel && s->common.device == NULL)
        s->common.device = "cpu";
    if (s->world_size > 1 && (s->rank < 0 || s->rank >= s->world_size))
        return ls_train_refuse("--world-size %lld needs --rank: which of the nodes this is, from 0",
                               (long long)s->world_size);
    if (s->gpu >= 0)
        ls_log(LS_LOG_WARN, "imagenet", "--gpu %lld is not used: the device is %s",
               (long long)s->gpu, s->common.device != NULL ? s->common.device : "cpu");
    return check_paths(s);
}

static ls_status parse(int argc, char **argv, settings *s)
{
    ls_train_flags *f = &s->common;
    char names[ARCHITECTURE_LIST_BYTES] = "`NAME` ";
    const ls_flag own[] = {
        {"As main.py of PyTorch's examples", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"DIR", 0, LS_FLAG_ARGUMENT, &f->data, 0, 0, "folder with train/CLASS/ and val/CLASS/"},
        {"arch", 'a', LS_FLAG_TEXT, &s->arch, 0, 0, names},
        {"batch-size", 'b', LS_FLAG_INT, &s->node_batch, 1, 1 << 24,
         "images of one node in one step, divided among its ranks"},
        {"workers", 'j', LS_FLAG_INT, &s->node_workers, 0, 4096,
         "threads of one node that read ahead, divided among its ranks"},
        {"learning-rate", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "as --lr"},
        {"wd", 0, LS_FLAG_REAL, &f->weight_decay, 0, 1e6, "weight decay"},
        {"pretrained", 0, LS_FLAG_OPTIONAL_TEXT, &f->init, 0, 0,
         "`FILE` start from these weights, as torchvision names them"},
        {"image-size", 0, LS_FLAG_INT, &s->image_size, 1, 4096,
         "`PIXELS` height and width of what is cropped"},
        {"dummy", 0, LS_FLAG_BOOL, &s->dummy, 0, 0, "made-up images, to measure speed"},
        {"world-size", 0, LS_FLAG_INT, &s->world_size, -1, 65536, "nodes"},
        {"rank", 0, LS_FLAG_INT, &s->rank, -1, 65535, "which of the nodes this is"},
        {"dist-url", 0, LS_FLAG_TEXT, &s->dist_url, 0, 0,
         "`URL` tcp://HOST:PORT of node 0, file://PATH, or env://"},
        {"dist-backend", 0, LS_FLAG_TEXT, &f->backend, 0, 0, "`NAME` native, mpi, gloo"},
        {"multiprocessing-distributed", 0, LS_FLAG_BOOL, &s->spawns, 0, 0,
         "start the ranks of this node from here"},
        {"nproc", 0, LS_FLAG_INT, &s->nproc, 0, 4096,
         "how many those are (and start them); 0: one a core"},
        {"gpu", 0, LS_FLAG_INT, &s->gpu, -1, 4096, "accepted; there are no GPUs yet"},
        {"no-accel", 0, LS_FLAG_BOOL, &s->no_accel, 0, 0, "accepted: the processor computes"},
    };

    architecture_list(names + strlen(names), sizeof(names) - strlen(names));
    TRY(ls_train_parse("imagenet", "Trains a network on a folder of images.", argc, argv, f, own,
                       sizeof(own) / sizeof(own[0])));
    if (s->nproc > 0)
        s->spawns = 1;
    return f->help ? LS_OK : check(s);
}

/* The ranks to start here (0: this process is one that somebody else has started), and where they meet those of the other nodes. */
static ls_status choose_ranks(settings *s, ls_spawn_options *where, int *n)
{
    const char *scheme = "tcp://";

    TRY(ls_train_local_ranks(&s->common, n)); /* -n -g -i, as all programs take them */
    *where = (ls_spawn_options){.size = sizeof(*where),
                                .nodes = (int)s->common.nodes,
                                .per_node = s->common.per_node,
                                .node = (int)s->common.node_id,
                                .master = s->common.master};
    if (*n > 0 || !s->spawns)
        return LS_OK;
    if (getenv("LOCKSTEP_RANK") != NULL)
        return ls_train_refuse("--multiprocessing-distributed starts ranks, but this process is "
                               "already rank %s of a job",
                               getenv("LOCKSTEP_RANK"));
    *n = s->nproc > 0 ? (int)s->nproc : (int)sysconf(_SC_NPROCESSORS_ONLN);
    where->nodes = s->world_size > 1 ? (int)s->world_size : 1;
    TRY(ls_backend_check(s->common.backend, *n * where->nodes));
    where->node = where->nodes > 1 ? (int)s->rank : 0;
    where->per_node = NULL; /* each node says its own */
    if (strncmp(s->dist_url, scheme, strlen(scheme)) == 0)
        where->master = s->dist_url + strlen(scheme);
    else if (where->nodes > 1 && strcmp(s->dist_url, "env://") != 0)
        return ls_train_refuse(
            "--dist-url %s: nodes that start their own ranks meet at tcp://HOST:PORT", s->dist_url);
    return LS_OK;
}

int main(int argc, char **argv)
{
    settings s = {
        .common = {.epochs = 90,
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
        .node_batch = 256,
        .node_workers = 4,
    };
    ls_spawn_options where;
    int n_local = 0;
    ls_status st;

    st = parse(argc, argv, &s);
    if (st == LS_OK && s.common.help)
        return EXIT_SUCCESS;
    if (st == LS_OK)
        st = choose_ranks(&s, &where, &n_local);
    if (st == LS_OK)
        st = n_local > 0 ? ls_spawn(run_rank, n_local, &s, &where) : run_rank(0, &s);
    return ls_train_exit("imagenet", st);
}
