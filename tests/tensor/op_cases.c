/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/op_cases.h"

/* Another rank with the same rows. */
static ls_status add_a_twin(void *arg, double *values, size_t n)
{
    LS_UNUSED(arg);
    for (size_t i = 0; i < n; i++)
        values[i] *= 2;
    return LS_OK;
}

/* Another rank with four values a channel: forward -1, 0, 1, 2; backward sums of 2 and 6. */
static ls_status add_a_stranger(void *arg, double *values, size_t n)
{
    LS_UNUSED(arg);
    values[0] += 4;
    for (size_t i = 1; i < n; i++)
        values[i] += i <= n / 2 ? 2 : 6;
    return LS_OK;
}

/* clang-format off */
const op_case op_cases[] = {
    /* conv2d: attrs hold {stride, padding, dilation, groups, kernel} */
    {.name = "conv2d of the ConvNet's first layer", .op = OP_CONV2D, .n_dims = 4, .x = {3, 1, 28, 28}, .out = 16,
     .attrs = {.padding = {2, 2}, .kernel = {5, 5}}},
    {.name = "conv2d of the ConvNet's second layer", .op = OP_CONV2D, .n_dims = 4, .x = {2, 16, 14, 14}, .out = 32,
     .attrs = {.padding = {2, 2}, .kernel = {5, 5}}},
    {.name = "conv2d of no rows", .op = OP_CONV2D, .n_dims = 4, .x = {0, 3, 6, 5}, .out = 4,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d of no rows without bias", .op = OP_CONV2D, .n_dims = 4, .x = {0, 8, 6, 5}, .out = 16, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d of one pixel", .op = OP_CONV2D, .n_dims = 4, .x = {1, 1, 1, 1}, .out = 1, .attrs = {.kernel = {1, 1}}},
    {.name = "conv2d of one pixel in padding", .op = OP_CONV2D, .n_dims = 4, .x = {1, 2, 1, 1}, .out = 3,
     .attrs = {.padding = {2, 1}, .kernel = {3, 3}}},
    {.name = "conv2d 3x3 stride 2 on odd sizes", .op = OP_CONV2D, .n_dims = 4, .x = {3, 5, 7, 9}, .out = 7,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d with unlike sides", .op = OP_CONV2D, .n_dims = 4, .x = {2, 3, 8, 11}, .out = 4,
     .attrs = {.stride = {2, 1}, .padding = {1, 2}, .kernel = {3, 5}}},
    {.name = "conv2d dilated", .op = OP_CONV2D, .n_dims = 4, .x = {2, 3, 9, 10}, .out = 5,
     .attrs = {.padding = {2, 1}, .dilation = {2, 3}, .kernel = {3, 3}}},
    {.name = "conv2d dilated with stride", .op = OP_CONV2D, .n_dims = 4, .x = {1, 16, 13, 12}, .out = 16, .no_bias = true,
     .attrs = {.stride = {2, 3}, .padding = {2, 2}, .dilation = {2, 2}, .kernel = {3, 3}}},
    {.name = "conv2d in 2 groups", .op = OP_CONV2D, .n_dims = 4, .x = {2, 6, 5, 5}, .out = 4,
     .attrs = {.padding = {1, 1}, .groups = 2, .kernel = {3, 3}}},
    {.name = "conv2d in 2 groups of 16", .op = OP_CONV2D, .n_dims = 4, .x = {2, 32, 6, 6}, .out = 32, .no_bias = true,
     .attrs = {.padding = {1, 1}, .groups = 2, .kernel = {3, 3}}},
    {.name = "conv2d depthwise", .op = OP_CONV2D, .n_dims = 4, .x = {2, 8, 6, 7}, .out = 8,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .groups = 8, .kernel = {3, 3}}},
    {.name = "conv2d depthwise with 3 outputs each", .op = OP_CONV2D, .n_dims = 4, .x = {1, 3, 6, 7}, .out = 9,
     .attrs = {.padding = {1, 1}, .groups = 3, .kernel = {3, 3}}},
    {.name = "conv2d of ResNeXt in 32 groups of 4", .op = OP_CONV2D, .n_dims = 4, .x = {2, 128, 7, 6}, .out = 128, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .groups = 32, .kernel = {3, 3}}},
    {.name = "conv2d of RegNet in 7 groups of 24", .op = OP_CONV2D, .n_dims = 4, .x = {1, 168, 5, 5}, .out = 168, .no_bias = true,
     .attrs = {.padding = {1, 1}, .groups = 7, .kernel = {3, 3}}},
    {.name = "conv2d depthwise 5x5 of 72 channels", .op = OP_CONV2D, .n_dims = 4, .x = {2, 72, 9, 8}, .out = 72, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {2, 2}, .groups = 72, .kernel = {5, 5}}},
    {.name = "conv2d depthwise 7x7 of 60 channels", .op = OP_CONV2D, .n_dims = 4, .x = {2, 60, 8, 7}, .out = 60,
     .attrs = {.padding = {3, 3}, .groups = 60, .kernel = {7, 7}}},
    {.name = "conv2d of ResNet's stem", .op = OP_CONV2D, .n_dims = 4, .x = {1, 3, 33, 31}, .out = 64, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {3, 3}, .kernel = {7, 7}}},
    {.name = "conv2d 3x3 of 2x2 images", .op = OP_CONV2D, .n_dims = 4, .x = {9, 24, 2, 2}, .out = 40,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d 3x3 of one pixel each", .op = OP_CONV2D, .n_dims = 4, .x = {11, 32, 1, 1}, .out = 24, .no_bias = true,
     .attrs = {.padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d 3x3 stride 2 to 2x1", .op = OP_CONV2D, .n_dims = 4, .x = {8, 16, 4, 2}, .out = 32, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d 1x1 stride 2 to one pixel", .op = OP_CONV2D, .n_dims = 4, .x = {13, 40, 2, 2}, .out = 56,
     .attrs = {.stride = {2, 2}, .kernel = {1, 1}}},
    {.name = "conv2d dilated to 2x2", .op = OP_CONV2D, .n_dims = 4, .x = {8, 16, 4, 3}, .out = 24,
     .attrs = {.padding = {1, 2}, .dilation = {2, 3}, .kernel = {3, 3}}},
    {.name = "conv2d that meets no pixel", .op = OP_CONV2D, .n_dims = 4, .x = {8, 16, 1, 1}, .out = 16,
     .attrs = {.stride = {4, 4}, .padding = {2, 2}, .kernel = {1, 1}}},
    {.name = "conv2d 1x1 between blocks of channels", .op = OP_CONV2D, .n_dims = 4, .x = {2, 64, 7, 6}, .out = 128, .no_bias = true,
     .attrs = {.kernel = {1, 1}}},
    {.name = "conv2d 3x3 stride 2 between blocks of channels", .op = OP_CONV2D, .n_dims = 4, .x = {2, 32, 10, 9}, .out = 48, .no_bias = true,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "conv2d 1x1 stride 2", .op = OP_CONV2D, .n_dims = 4, .x = {2, 64, 7, 7}, .out = 24, .no_bias = true,
     .attrs = {.stride = {2, 2}, .kernel = {1, 1}}},
    {.name = "conv2d 1x1 from 17 to 33", .op = OP_CONV2D, .n_dims = 4, .x = {3, 17, 5, 3}, .out = 33, .attrs = {.kernel = {1, 1}}},
    {.name = "conv2d as large as the image", .op = OP_CONV2D, .n_dims = 4, .x = {4, 5, 6, 4}, .out = 9,
     .attrs = {.kernel = {6, 4}}},
    {.name = "conv2d that skips pixels", .op = OP_CONV2D, .n_dims = 4, .x = {2, 4, 11, 10}, .out = 6,
     .attrs = {.stride = {3, 4}, .kernel = {2, 2}}},
    {.name = "conv2d that leaves a rest", .op = OP_CONV2D, .n_dims = 4, .x = {2, 3, 10, 8}, .out = 6,
     .attrs = {.stride = {3, 3}, .kernel = {3, 3}}},

    {.name = "batch norm in training", .op = OP_BATCH_NORM, .n_dims = 4, .x = {4, 16, 5, 7},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true}},
    {.name = "batch norm of the ConvNet with relu", .op = OP_BATCH_NORM, .n_dims = 4, .x = {3, 16, 28, 28},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .relu = true}},
    {.name = "batch norm of 17 channels with relu", .op = OP_BATCH_NORM, .n_dims = 4, .x = {3, 17, 3, 5},
     .attrs = {.momentum = 0.3, .eps = 1e-3, .training = true, .relu = true}},
    {.name = "batch norm of 2 values a channel", .op = OP_BATCH_NORM, .n_dims = 4, .x = {2, 3, 1, 1},
     .attrs = {.momentum = 1, .eps = 1e-2, .training = true}},
    {.name = "batch norm of rows", .op = OP_BATCH_NORM, .n_dims = 2, .x = {7, 5},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true}},
    {.name = "batch norm of rows with relu", .op = OP_BATCH_NORM, .n_dims = 2, .x = {9, 16},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .relu = true}},
    {.name = "batch norm of one pixel each with relu", .op = OP_BATCH_NORM, .n_dims = 4, .x = {9, 24, 1, 1},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .relu = true}},
    {.name = "batch norm of no rows", .op = OP_BATCH_NORM, .n_dims = 4, .x = {0, 16, 4, 4},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .relu = true}},
    {.name = "batch norm of values far from 0", .op = OP_BATCH_NORM, .n_dims = 4, .x = {4, 8, 6, 6}, .scale = 1000,
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true}},
    {.name = "batch norm shared by two", .op = OP_BATCH_NORM, .n_dims = 4, .x = {3, 17, 5, 6},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .sync = {.sum = add_a_twin}}},
    {.name = "batch norm shared by two with relu", .op = OP_BATCH_NORM, .n_dims = 2, .x = {1, 16},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .relu = true, .sync = {.sum = add_a_stranger}}},
    {.name = "batch norm of no rows, shared with others", .op = OP_BATCH_NORM, .n_dims = 4, .x = {0, 16, 4, 4},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .sync = {.sum = add_a_stranger}}},
    {.name = "batch norm of no rows, shared by two", .op = OP_BATCH_NORM, .n_dims = 4, .x = {0, 16, 4, 4},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .training = true, .sync = {.sum = add_a_twin}}},
    {.name = "batch norm in evaluation", .op = OP_BATCH_NORM, .n_dims = 4, .x = {3, 16, 5, 6}, .attrs = {.momentum = 0.1, .eps = 1e-5}},
    {.name = "batch norm in evaluation with relu", .op = OP_BATCH_NORM, .n_dims = 4, .x = {1, 5, 1, 1},
     .attrs = {.momentum = 0.1, .eps = 1e-5, .relu = true}},
    {.name = "batch norm of no rows in evaluation", .op = OP_BATCH_NORM, .n_dims = 2, .x = {0, 5}, .attrs = {.momentum = 0.1, .eps = 1e-5}},

    {.name = "relu", .op = OP_RELU, .n_dims = 4, .x = {3, 5, 7, 3}},
    {.name = "relu with zeros", .op = OP_RELU, .n_dims = 2, .x = {9, 31}, .ties = true},
    {.name = "relu of no rows", .op = OP_RELU, .n_dims = 2, .x = {0, 31}},
    {.name = "relu of one row", .op = OP_RELU, .n_dims = 1, .x = {17}},

    {.name = "add", .op = OP_ADD, .n_dims = 4, .x = {2, 3, 5, 7}},
    {.name = "add of no rows", .op = OP_ADD, .n_dims = 2, .x = {0, 7}},
    {.name = "add of scalars", .op = OP_ADD, .n_dims = 0},

    {.name = "add relu", .op = OP_ADD_RELU, .n_dims = 4, .x = {2, 3, 5, 7}},
    {.name = "add relu with sums of 0", .op = OP_ADD_RELU, .n_dims = 4, .x = {3, 17, 4, 3}, .ties = true},
    {.name = "add relu of no rows", .op = OP_ADD_RELU, .n_dims = 4, .x = {0, 16, 4, 4}},
    {.name = "add relu of scalars", .op = OP_ADD_RELU, .n_dims = 0},

    {.name = "max pool 2x2", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {3, 16, 28, 28}, .attrs = {.kernel = {2, 2}}},
    {.name = "max pool 2x2 on odd sizes", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 5, 7, 9}, .attrs = {.kernel = {2, 2}}},
    {.name = "max pool 2x2 with ties", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 16, 8, 8}, .ties = true, .attrs = {.kernel = {2, 2}}},
    {.name = "max pool 3x3 stride 2 padding 1", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 4, 11, 8},
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "max pool 3x3 overlapping with ties", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 17, 6, 7}, .ties = true,
     .attrs = {.stride = {1, 1}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "max pool with unlike sides", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {1, 3, 9, 10},
     .attrs = {.stride = {1, 3}, .padding = {0, 1}, .kernel = {2, 3}}},
    {.name = "max pool over the whole image", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 3, 5, 4}, .attrs = {.kernel = {5, 4}}},
    {.name = "max pool 1x1", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 3, 3, 3}, .attrs = {.kernel = {1, 1}}},
    {.name = "max pool of no rows", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {0, 16, 14, 14}, .attrs = {.kernel = {2, 2}}},

    {.name = "max pool of ResNet's stem", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 64, 16, 17},
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "max pool 3x3 stride 2 with ties", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 8, 7, 6}, .ties = true,
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "max pool 3x3 stride 2 of one pixel", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 16, 1, 1},
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "max pool 3x3 stride 2 of no rows", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {0, 16, 9, 9},
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},

    {.name = "max pool 2x2 ceil_mode", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 16, 7, 9}, .ceil_mode = true,
     .attrs = {.kernel = {2, 2}}},
    {.name = "max pool 3x3 stride 2 ceil_mode", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {2, 19, 8, 13}, .ceil_mode = true,
     .attrs = {.stride = {2, 2}, .kernel = {3, 3}}},
    {.name = "max pool ceil_mode with padding", .op = OP_MAX_POOL2D, .n_dims = 4, .x = {1, 8, 6, 7}, .ceil_mode = true, .ties = true,
     .attrs = {.stride = {3, 4}, .padding = {1, 1}, .kernel = {3, 2}}},

    {.name = "average pool ceil_mode", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {2, 8, 8, 13}, .ceil_mode = true,
     .attrs = {.stride = {2, 3}, .padding = {0, 1}, .kernel = {3, 2}}},
    {.name = "average pool 2x2", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {3, 16, 8, 6}, .attrs = {.kernel = {2, 2}}},
    {.name = "average pool 3x3 stride 2 padding 1", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {2, 5, 7, 10},
     .attrs = {.stride = {2, 2}, .padding = {1, 1}, .kernel = {3, 3}}},
    {.name = "average pool that skips pixels", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {2, 17, 9, 10},
     .attrs = {.stride = {3, 4}, .padding = {0, 1}, .kernel = {2, 3}}},
    {.name = "average pool of no rows", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {0, 16, 8, 8}, .attrs = {.kernel = {2, 2}}},
    {.name = "adaptive average pool to one", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {3, 32, 7, 7}, .out = 1, .attrs = {.adaptive = true}},
    {.name = "adaptive average pool to unequal windows", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {2, 17, 7, 10}, .out = 3,
     .attrs = {.adaptive = true}},
    {.name = "adaptive average pool to more than there is", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {2, 4, 2, 3}, .out = 5,
     .attrs = {.adaptive = true}},
    {.name = "adaptive average pool of no rows", .op = OP_AVG_POOL2D, .n_dims = 4, .x = {0, 16, 7, 7}, .out = 1, .attrs = {.adaptive = true}},

    {.name = "linear of the ConvNet", .op = OP_LINEAR, .n_dims = 2, .x = {5, 1568}, .out = 10},
    {.name = "linear with odd sizes", .op = OP_LINEAR, .n_dims = 2, .x = {3, 7}, .out = 5},
    {.name = "linear without bias", .op = OP_LINEAR, .n_dims = 2, .x = {17, 33}, .out = 19, .no_bias = true},
    {.name = "linear of one number", .op = OP_LINEAR, .n_dims = 2, .x = {1, 1}, .out = 1},
    {.name = "linear of no rows", .op = OP_LINEAR, .n_dims = 2, .x = {0, 12}, .out = 4},
    {.name = "linear of no rows without bias", .op = OP_LINEAR, .n_dims = 2, .x = {0, 12}, .out = 4, .no_bias = true},

    {.name = "cross entropy", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {5, 10}},
    {.name = "cross entropy of large logits", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {7, 13}, .scale = 100},
    {.name = "cross entropy of many classes", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {3, 1000}},
    {.name = "cross entropy of one class", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {2, 1}},
    {.name = "cross entropy of no rows", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {0, 10}},
    {.name = "cross entropy with smoothed labels", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {6, 11}, .attrs = {.label_smoothing = 0.1}},
    {.name = "cross entropy with nothing but smoothing", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {3, 1000}, .scale = 10,
     .attrs = {.label_smoothing = 1}},
    {.name = "cross entropy of no rows with smoothed labels", .op = OP_CROSS_ENTROPY, .n_dims = 2, .x = {0, 10},
     .attrs = {.label_smoothing = 0.1}},

    {.name = "log softmax", .op = OP_LOG_SOFTMAX, .n_dims = 2, .x = {5, 10}},
    {.name = "log softmax of large numbers", .op = OP_LOG_SOFTMAX, .n_dims = 2, .x = {7, 13}, .scale = 100},
    {.name = "log softmax of many classes", .op = OP_LOG_SOFTMAX, .n_dims = 2, .x = {3, 1000}},
    {.name = "log softmax of one class", .op = OP_LOG_SOFTMAX, .n_dims = 2, .x = {2, 1}},
    {.name = "log softmax of no rows", .op = OP_LOG_SOFTMAX, .n_dims = 2, .x = {0, 10}},

    {.name = "nll", .op = OP_NLL, .n_dims = 2, .x = {5, 10}},
    {.name = "nll of one class", .op = OP_NLL, .n_dims = 2, .x = {3, 1}},
    {.name = "nll of no rows", .op = OP_NLL, .n_dims = 2, .x = {0, 10}},

    {.name = "dropout", .op = OP_DROPOUT, .n_dims = 4, .x = {3, 16, 7, 5}, .attrs = {.drop = 0.3, .random = 12345}},
    {.name = "dropout of everything", .op = OP_DROPOUT, .n_dims = 2, .x = {9, 31}, .attrs = {.drop = 1, .random = 1}},
    {.name = "dropout of no rows", .op = OP_DROPOUT, .n_dims = 2, .x = {0, 31}, .attrs = {.drop = 0.5, .random = 1}},

    {.name = "dropout of whole rows", .op = OP_DROPOUT, .n_dims = 4, .x = {9, 19, 3, 5},
     .attrs = {.drop = 0.3, .random = 4711, .drops_rows = true}},

    {.name = "mse", .op = OP_MSE, .n_dims = 2, .x = {20, 5}},
    {.name = "mse of images", .op = OP_MSE, .n_dims = 4, .x = {2, 3, 5, 7}},
    {.name = "mse of no rows", .op = OP_MSE, .n_dims = 2, .x = {0, 5}},
};
/* clang-format on */

const int n_op_cases = (int)LS_COUNT_OF(op_cases);
