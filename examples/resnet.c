/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet.c - trains a ResNet on CIFAR-10, or on synthetic images to measure speed, in one process
 * or many.
 *
 *   lockstep run --nproc-per-node 2 resnet --data DIR          a launcher starts the ranks
 *   mpirun -np 2 resnet --backend mpi --use_syn                MPI's launcher starts them
 *   resnet -n 1 -g 2 -i 0 --data DIR                           this program starts them
 */
#include <lockstep/lockstep.h>

#include "models/architectures.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The flags of this program, after those of all training programs. */
typedef struct settings {
    ls_train_flags common;
    const char *arch;
    int64_t image_size;
    const char *augment;
    int use_syn;
    int64_t steps_syn;
    const char *model_dir;
    const char *model_filename;
    char path[4096]; /* of the file in model_dir */
    int net;         /* number of the architecture */
} settings;

/* --- data --- */

/* Random images for steps_syn steps of every rank. */
static ls_status open_synthetic(const settings *s, const ls_comm *comm, ls_dataset **out)
{
    const ls_synthetic_options images = {
        .size = sizeof(images),
        .count = (size_t)(s->steps_syn * s->common.batch_size) * (size_t)ls_comm_size(comm),
        .classes = 10,
        .height = s->image_size > 0 ? (int)s->image_size : 224,
        .seed = (uint64_t)s->common.seed,
    };

    return ls_dataset_open_synthetic(&images, out);
}

/* Training images of 32x32 are padded and cropped as usual for CIFAR. Resized images are cropped to
 * at least 64 % of their area. */
static void set_variation(const settings *s, ls_augment *augment)
{
    augment->flip = strcmp(s->augment, "none") != 0;
    if (strcmp(s->augment, "crop") == 0 && s->image_size == 0)
        return; /* ls_augment_cifar() has set it */
    augment->pad = 0;
    augment->crop = strcmp(s->augment, "crop") == 0 ? LS_CROP_RANDOM_RESIZED : LS_CROP_NONE;
    augment->scale_min = 0.64;
    augment->ratio_min = augment->ratio_max = 1;
}

/* All images are normalized, and resized with --image_size. */
static ls_status open_cifar(const settings *s, const char *split, int training, ls_dataset **out)
{
    ls_augment augment;
    ls_status st;

    ls_augment_cifar(training, &augment);
    augment.seed = (uint64_t)s->common.seed;
    if (s->image_size > 0)
        augment.height = (int)s->image_size;
    if (training)
        set_variation(s, &augment);
    LS_TRY(ls_dataset_open_cifar(s->common.data, split, out));
    st = ls_dataset_augment(*out, &augment);
    if (st != LS_OK)
        ls_dataset_close(*out);
    return st;
}

static ls_status open_data(const settings *s, const ls_comm *comm, ls_run *run, int *classes)
{
    ls_dataset *train_set, *test_set;

    if (s->use_syn) {
        LS_TRY(open_synthetic(s, comm, &train_set));
        *classes = ls_dataset_classes(train_set);
        return ls_run_train_on_take(run, train_set);
    }
    LS_TRY(open_cifar(s, "train", 1, &train_set));
    *classes = ls_dataset_classes(train_set);
    LS_TRY(ls_run_train_on_take(run, train_set));
    LS_TRY(open_cifar(s, "test", 0, &test_set));
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

/* One rank. */
static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    const settings *s = arg;
    network *net;
    int side = s->use_syn ? 224 : 32;
    int classes;
    ls_status st;

    LS_TRY(open_data(s, comm, run, &classes));
    if (s->image_size > 0)
        side = (int)s->image_size;
    net = net_create(ls_run_model(run), s->net, classes, side);
    if (net == NULL)
        return ls_train_refuse("no memory for the network");
    st = loop(run, comm, net);
    net_destroy(net);
    return st;
}

/* --- flags --- */

/* Sets --save to the file in model_dir, which is created. Synthetic runs save nothing. */
static ls_status choose_file(settings *s)
{
    ls_train_flags *f = &s->common;

    if (f->save == NULL && !s->use_syn) {
        snprintf(s->path, sizeof(s->path), "%s/%s", s->model_dir, s->model_filename);
        if (mkdir(s->model_dir, 0777) != 0 && errno != EEXIST)
            return ls_train_refuse("--model_dir %s: cannot create the folder: %s", s->model_dir,
                                   strerror(errno));
        f->save = s->path;
    }
    return LS_OK;
}

static ls_status check(void *arg)
{
    settings *s = arg;
    char problem[ARCHITECTURE_LIST_BYTES + 128];

    s->net = architecture_find(s->arch, problem, sizeof(problem));
    if (s->net < 0)
        return ls_train_refuse("--arch: %s", problem);
    if (strcmp(s->augment, "crop") != 0 && strcmp(s->augment, "flip") != 0 &&
        strcmp(s->augment, "none") != 0)
        return ls_train_refuse("--augment %s: choose one of crop, flip, none", s->augment);
    return choose_file(s);
}

static int run(settings *s, int argc, char **argv)
{
    ls_train_flags *f = &s->common;
    char names[ARCHITECTURE_LIST_BYTES] = "`NAME` ";
    const ls_flag own[] = {
        {"Model and data", 0, LS_FLAG_HEADING, NULL, 0, 0, NULL},
        {"arch", 'a', LS_FLAG_TEXT, &s->arch, 0, 0, names},
        {"num-epochs", 0, LS_FLAG_INT, &f->epochs, 0, 1e9, "number of epochs"},
        {"learning-rate", 0, LS_FLAG_REAL, &f->lr, 0, 1e6, "initial learning rate"},
        {"random-seed", 0, LS_FLAG_INT, &f->seed, 0, 1e15,
         "seed of weights, sample order and augmentation"},
        {"image-size", 0, LS_FLAG_INT, &s->image_size, 0, 4096,
         "`PIXELS` height and width; 0 = 32 with CIFAR, 224 with synthetic images"},
        {"augment", 0, LS_FLAG_TEXT, &s->augment, 0, 0,
         "`WORD` augmentation of training images: crop (and flip), flip, none"},
        {"use-syn", 0, LS_FLAG_BOOL, &s->use_syn, 0, 0, "synthetic images instead of CIFAR-10"},
        {"steps-syn", 0, LS_FLAG_INT, &s->steps_syn, 1, 1e9, "steps per epoch of synthetic images"},
        {"model-dir", 0, LS_FLAG_TEXT, &s->model_dir, 0, 0,
         "`DIR` folder of the saved model, created if missing"},
        {"model-filename", 0, LS_FLAG_TEXT, &s->model_filename, 0, 0,
         "`FILE` name of the saved model in that folder"},
    };
    const ls_train_program program = {
        .size = sizeof(program),
        .name = "resnet",
        .summary = "Trains a ResNet on CIFAR-10 or on synthetic images.",
        .flags = f,
        .own = own,
        .n_own = sizeof(own) / sizeof(own[0]),
        .check = check,
        .train = train,
        .arg = s,
    };

    architecture_list(names + strlen(names), sizeof(names) - strlen(names));
    return ls_train_main(&program, argc, argv);
}

int main(int argc, char **argv)
{
    settings s = {
        .common = {.epochs = 10,
                   .batch_size = 256,
                   .lr = 0.1,
                   .momentum = 0.9,
                   .weight_decay = 1e-5,
                   .data = "data"},
        .arch = "resnet50",
        .augment = "crop",
        .steps_syn = 20,
        .model_dir = "saved_models",
        .model_filename = "resnet_distributed.safetensors",
    };

    return run(&s, argc, argv);
}
