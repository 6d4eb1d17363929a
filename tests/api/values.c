/* SPDX-License-Identifier: Apache-2.0 */
/* values.c - makes a valid value of each kind of argument, for test_null.c and test_options.c. */
#include "api/values.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void value_needs(ls_status status, const char *what)
{
    if (status == LS_OK)
        return;
    (void)fprintf(stderr, "%s cannot be made: %s\n", what, ls_last_error());
    _exit(VALUES_FAILED);
}

/* Runs `make`, which sets `variable`, the first time. */
#define ONCE(type, variable, make)                                                                 \
    static type variable;                                                                          \
    if (variable == NULL)                                                                          \
    value_needs((make), #variable)

ls_device *some_device(void)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref", .threads = 1};

    ONCE(ls_device *, device, ls_device_open(&opt, &device));
    return device;
}

/* --- tensors --- */

static ls_status make_ones(int n_dims, const int64_t *dims, ls_tensor **out)
{
    const ls_status st = ls_tensor_create(some_device(), LS_F32, n_dims, dims, out);
    float *data = st == LS_OK ? ls_tensor_data(*out) : NULL;

    for (size_t i = 0; data != NULL && i < ls_tensor_count(*out); i++)
        data[i] = 1;
    return st;
}

#define ONES(...)                                                                                  \
    make_ones((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}, \
              &tensor)

ls_tensor *some_tensor(void)
{
    ONCE(ls_tensor *, tensor, ONES(4, 2));
    return tensor;
}

ls_tensor *some_targets(void)
{
    ONCE(ls_tensor *, tensor,
         ls_tensor_create(some_device(), LS_I64, 1, (const int64_t[]){4}, &tensor));
    return tensor;
}

ls_tensor *some_images(void)
{
    ONCE(ls_tensor *, tensor, ONES(4, 1, 4, 4));
    return tensor;
}

ls_tensor *some_kernel(void)
{
    ONCE(ls_tensor *, tensor, ONES(1, 1, 3, 3));
    return tensor;
}

ls_tensor *some_sequences(void)
{
    ONCE(ls_tensor *, tensor, ONES(4, 1, 8));
    return tensor;
}

ls_tensor *some_taps(void)
{
    ONCE(ls_tensor *, tensor, ONES(1, 1, 3));
    return tensor;
}

ls_tensor *some_square(void)
{
    ONCE(ls_tensor *, tensor, ONES(2, 2));
    return tensor;
}

ls_tensor *some_lstm_weight(void)
{
    ONCE(ls_tensor *, tensor, ONES(8, 2));
    return tensor;
}

ls_tensor *some_gru_weight(void)
{
    ONCE(ls_tensor *, tensor, ONES(6, 2));
    return tensor;
}

ls_tensor *some_channel(void)
{
    ONCE(ls_tensor *, tensor, ONES(1));
    return tensor;
}

ls_tensor *some_pair(void)
{
    ONCE(ls_tensor *, tensor, ONES(2));
    return tensor;
}

ls_tensor *some_leaf(void)
{
    const int64_t dims[] = {2, 2};

    ONCE(ls_tensor *, tensor, ls_tensor_create(some_device(), LS_F64, 2, dims, &tensor));
    value_needs(ls_require_grad(tensor), "leaf");
    return tensor;
}

ls_tensor *const *some_leaves(void)
{
    static ls_tensor *leaves[1];

    leaves[0] = some_leaf();
    return leaves;
}

const ls_named *some_items(void)
{
    static ls_named item = {.name = "item"};

    item.tensor = some_square();
    return &item;
}

const ls_named *some_parameters(void)
{
    int n;

    (void)some_layer();
    return ls_model_parameters(some_model(), &n);
}

/* --- tapes, models --- */

ls_tape *some_tape(void)
{
    ONCE(ls_tape *, tape, ls_tape_create(some_device(), &tape));
    ls_tape_set_random(tape, 1, 1);
    return tape;
}

ls_tensor *some_loss(void)
{
    ls_tensor *x = ls_forward(some_tape(), some_layer(), some_tensor());
    ls_tensor *loss = ls_cross_entropy(some_tape(), x, some_targets());

    value_needs(ls_tape_status(some_tape()), "loss");
    return loss;
}

ls_tensor *sum_of_squares(ls_tape *tape, ls_tensor *const *inputs, void *arg)
{
    (void)arg;
    return ls_mse_loss(tape, inputs[0], ls_relu(tape, inputs[0]));
}

void pass_input(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg)
{
    (void)arg;
    outputs[0] = ls_relu(tape, inputs[0]);
}

ls_tensor *pass_on(void *arg, ls_tape *tape, ls_tensor *x)
{
    (void)arg;
    (void)tape;
    return x;
}

static ls_status zeros(const ls_op_call *call)
{
    memset(ls_tensor_data(call->outputs[0]), 0, ls_tensor_count(call->outputs[0]) * sizeof(double));
    return LS_OK;
}

const ls_op *some_op(void)
{
    static const ls_op op = {.size = sizeof(op), .name = "zeros", .forward = zeros};

    return &op;
}

static ls_status set_nothing(void *arg, const char *key, const void *value, size_t bytes)
{
    (void)arg;
    (void)key;
    (void)value;
    (void)bytes;
    return LS_OK;
}

static ls_status get_nothing(void *arg, const char *key, int64_t timeout_ms, const void **value,
                             size_t *bytes)
{
    (void)arg;
    (void)key;
    (void)timeout_ms;
    (void)value;
    *bytes = 0;
    return LS_OK;
}

static ls_status add_nothing(void *arg, const char *key, int64_t delta, int64_t *out)
{
    (void)arg;
    (void)key;
    *out = delta;
    return LS_OK;
}

const ls_store_callbacks *some_callbacks(void)
{
    static const ls_store_callbacks callbacks = {
        .size = sizeof(callbacks), .set = set_nothing, .get = get_nothing, .add = add_nothing};

    return &callbacks;
}

void no_stack(void *arg, char *text, size_t bytes)
{
    (void)arg;
    if (bytes > 0)
        text[0] = '\0';
}

void ignore_end(void *arg, const ls_work_end *end)
{
    (void)arg;
    (void)end;
}

ls_status ignore_leaf(void *arg, ls_tensor *leaf)
{
    (void)arg;
    (void)leaf;
    return LS_OK;
}

void ignore_difference(void *arg, const char *text)
{
    (void)arg;
    (void)text;
}

ls_model *some_model(void)
{
    ONCE(ls_model *, model, ls_model_create(some_device(), 1, &model));
    return model;
}

ls_layer *some_layer(void)
{
    static ls_layer *layer;

    if (layer == NULL)
        layer = ls_nn_linear(some_model(), "fc", 2, 2, 0);
    value_needs(ls_model_status(some_model()), "layer");
    return layer;
}

ls_layer *const *some_layers(void)
{
    static ls_layer *layers[1];

    layers[0] = some_layer();
    return layers;
}

/* A model beside some_model(), which has one layer. */
ls_model *recurrent_model(void)
{
    ONCE(ls_model *, model, ls_model_create(some_device(), 1, &model));
    return model;
}

ls_layer *some_gru(void)
{
    static ls_layer *layer;

    if (layer == NULL)
        layer = ls_nn_gru(recurrent_model(), "gru", 8, 2, NULL);
    value_needs(ls_model_status(recurrent_model()), "layer");
    return layer;
}

ls_layer *some_cell(void)
{
    static ls_layer *layer;

    if (layer == NULL)
        layer = ls_nn_lstm_cell(recurrent_model(), "cell", 2, 2, 0);
    value_needs(ls_model_status(recurrent_model()), "layer");
    return layer;
}

ls_ddp *some_ddp(void)
{
    (void)some_layer();
    ONCE(ls_ddp *, ddp, ls_ddp_create(some_comm(), some_model(), NULL, &ddp));
    return ddp;
}

ls_optimizer *some_optimizer(void)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.1, .momentum = 0.9};

    ONCE(ls_optimizer *, optimizer, ls_sgd_create(some_parameters(), 2, ls_grad, &opt, &optimizer));
    return optimizer;
}

ls_local_sgd *some_local_sgd(void)
{
    const ls_local_sgd_options opt = {.size = sizeof(opt), .every = 2};

    ONCE(ls_local_sgd *, local,
         ls_local_sgd_create(some_comm(), recurrent_model(), some_optimizer(), &opt, &local));
    return local;
}

ls_grad_scaler *some_grad_scaler(void)
{
    ONCE(ls_grad_scaler *, scaler, ls_grad_scaler_create(some_optimizer(), NULL, &scaler));
    return scaler;
}

/* --- groups --- */

ls_comm *some_comm(void)
{
    ONCE(ls_comm *, comm, ls_init(NULL, &comm));
    return comm;
}

ls_work *some_work(void)
{
    ONCE(ls_work *, work, ls_barrier(some_comm(), &work));
    return work;
}

const float *some_floats(void)
{
    static const float floats[4] = {1, 2, 3, 4};

    return floats;
}

float *other_floats(void)
{
    static float floats[4];

    return floats;
}

void *shared_memory(void)
{
    ONCE(void *, memory, ls_comm_alloc(some_comm(), 64, &memory));
    return memory;
}

ls_status do_nothing(int local_rank, void *arg)
{
    (void)local_rank;
    (void)arg;
    return LS_OK;
}

/* --- data --- */

/* The process works in a folder of its test's, which the test removes. */

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        value_needs(LS_EIO, path);
}

static ls_status open_dataset(ls_dataset **out)
{
    const ls_synthetic_options opt = {
        .size = sizeof(opt), .count = 8, .classes = 2, .channels = 1, .height = 4, .width = 4};

    return ls_dataset_open_synthetic(&opt, out);
}

ls_dataset *some_dataset(void)
{
    ONCE(ls_dataset *, set, open_dataset(&set));
    return set;
}

ls_dataset *free_dataset(void)
{
    ONCE(ls_dataset *, set, open_dataset(&set));
    return set;
}

const ls_array *some_array(void)
{
    static const float numbers[4] = {1, 2, 3, 4};
    static const ls_array array = {.field = {.name = "x", .type = LS_F32, .n_dims = 1, .dims = {1}},
                                   .data = numbers};

    return &array;
}

static ls_status length_of(void *arg, size_t index, int64_t *lengths)
{
    (void)arg;
    lengths[0] = (int64_t)index;
    return LS_OK;
}

static ls_status read_tokens(void *arg, const ls_sample_request *request, void *const *values)
{
    (void)arg;
    for (int64_t i = 0; i < request->lengths[0]; i++)
        ((int32_t *)values[0])[i] = (int32_t)i;
    return LS_OK;
}

const ls_dataset_callbacks *sequence_callbacks(void)
{
    static const ls_field tokens = {.name = "tokens", .type = LS_I32, .n_dims = 1, .dims = {-1}};
    static const ls_dataset_callbacks callbacks = {.size = sizeof(callbacks),
                                                   .count = 4,
                                                   .fields = &tokens,
                                                   .n_fields = 1,
                                                   .lengths = length_of,
                                                   .read = read_tokens};

    return &callbacks;
}

const ls_elastic_options *elastic_options(void)
{
    static int64_t step;
    static const ls_elastic_options options = {.size = sizeof(options), .step = &step};

    return &options;
}

ls_dataset *sequence_set(void)
{
    ONCE(ls_dataset *, set, ls_dataset_create(sequence_callbacks(), &set));
    return set;
}

static ls_loader *open_sequences(void)
{
    const ls_sampler_options opt = {.size = sizeof(opt), .count = 4};
    ls_loader_options loading = {
        .size = sizeof(loading), .dataset = sequence_set(), .batch_size = 4, .threads = -1};

    ONCE(ls_sampler *, sampler, ls_sampler_create(&opt, &sampler));
    loading.device = some_device();
    loading.sampler = sampler;
    ONCE(ls_loader *, loader, ls_loader_create(&loading, &loader));
    return loader;
}

const ls_batch *some_batch(void)
{
    static ls_batch batch;

    if (batch.fields == NULL) {
        value_needs(ls_loader_start(open_sequences(), 0, 0), "epoch");
        value_needs(ls_loader_next(open_sequences(), &batch), "batch");
    }
    return &batch;
}

const char *image_folder(void)
{
    (void)mkdir("set", 0700);
    (void)mkdir("set/class", 0700);
    write_file("set/class/a.png", "", 0);
    return "set";
}

const char *idx_file(int i)
{
    static const unsigned char images[20] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2};
    static const unsigned char labels[9] = {0, 0, 8, 1, 0, 0, 0, 1};
    static const char *const names[2] = {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

    if (i == 0)
        write_file(names[0], images, sizeof(images));
    else
        write_file(names[1], labels, sizeof(labels));
    return names[i];
}

ls_sampler *some_sampler(void)
{
    const ls_sampler_options opt = {.size = sizeof(opt), .count = 8};

    ONCE(ls_sampler *, sampler, ls_sampler_create(&opt, &sampler));
    return sampler;
}

ls_loader *some_loader(void)
{
    const ls_loader_options opt = {.size = sizeof(opt),
                                   .device = some_device(),
                                   .dataset = some_dataset(),
                                   .sampler = some_sampler(),
                                   .batch_size = 4,
                                   .threads = -1};

    ONCE(ls_loader *, loader, ls_loader_create(&opt, &loader));
    value_needs(ls_loader_start(loader, 0, 0), "epoch");
    return loader;
}

const char *checkpoint_path(void)
{
    value_needs(ls_checkpoint_save("saved", some_items(), 1, NULL, 0), "file");
    return "saved";
}

ls_checkpoint *some_checkpoint(void)
{
    ONCE(ls_checkpoint *, checkpoint, ls_checkpoint_open(checkpoint_path(), &checkpoint));
    return checkpoint;
}

/* --- stores, flags --- */

ls_store *some_store(void)
{
    ONCE(ls_store *, store, ls_store_open("mem:", NULL, &store));
    value_needs(ls_store_set(store, "key", "7", 1), "key");
    return store;
}

const char *const *some_keys(void)
{
    static const char *const keys[] = {"key"};

    return keys;
}

const ls_flag *some_flag(void)
{
    static int on;
    static const ls_flag flag = {.name = "on", .kind = LS_FLAG_BOOL, .value = &on, .help = "on"};

    return &flag;
}

const ls_flags *some_flags(void)
{
    static ls_flags flags = {.size = sizeof(flags),
                             .program = "program",
                             .usage = "[flags]",
                             .summary = "Does nothing.",
                             .n = {1, 0}};

    flags.tables[0] = some_flag();
    return &flags;
}

char **some_argv(void)
{
    static char program[] = "program";
    static char flag[] = "--on";
    static char *argv[] = {program, flag, NULL};

    return argv;
}

/* --- runs --- */

ls_train_flags *some_train_flags(void)
{
    static ls_train_flags flags = {.device = "cpu_ref", .epochs = 1, .batch_size = 4, .lr = 0.1};

    return &flags;
}

static ls_status train_nothing(ls_run *run, ls_comm *comm, void *arg)
{
    (void)run;
    (void)comm;
    (void)arg;
    return LS_OK;
}

double rate_of(void *arg, int64_t step, int64_t steps)
{
    (void)arg;
    (void)step;
    (void)steps;
    return 0.1;
}

double same_value(double mean)
{
    return mean;
}

ls_run *declaring_run(void)
{
    value_needs(ls_run_declare(some_run(), "value"), "value");
    return some_run();
}

ls_tensor *lose_nothing(void *arg, ls_run *run, const ls_batch *batch)
{
    (void)arg;
    (void)run;
    (void)batch;
    return NULL;
}

ls_status compute_nothing(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    (void)arg;
    (void)shard;
    (void)tape;
    *loss = NULL;
    *rows = 0;
    return LS_OK;
}

ls_status evaluate_nothing(void *arg, ls_run *run, const ls_batch *batch)
{
    (void)arg;
    (void)run;
    (void)batch;
    return LS_OK;
}

const ls_train_program *some_program(void)
{
    static ls_train_program program = {.size = sizeof(program),
                                       .name = "program",
                                       .summary = "Does nothing.",
                                       .train = train_nothing};

    program.flags = some_train_flags();
    return &program;
}

ls_run *some_run(void)
{
    static ls_layer *layer;

    ONCE(ls_run *, run, ls_run_open(some_train_flags(), &run));
    if (layer == NULL)
        layer = ls_nn_linear(ls_run_model(run), "fc", 16, 2, 0);
    return run;
}

ls_run *running_run(void)
{
    value_needs(ls_run_train_on_take(some_run(), free_dataset()), "training set");
    value_needs(ls_run_start(some_run(), NULL, NULL), "run");
    return some_run();
}
