# SPDX-License-Identifier: Apache-2.0
# What the CUDA device has in common with the tests' device of the same sources.
set(device_sources dnn/conv_graph.c runtime/cuda_accel.c dnn/cuda_conv2d.c cuda_device.c
    runtime/cuda_graph.c dnn/cuda_linear.c dnn/cuda_math.c dnn/dnn_cache.c dnn/dnn_graph.c
    ops/packed.c dnn/plan_file.c ops/own_binary.c ops/own_elements.c ops/own_move.c ops/own_norm.c
    ops/own_operands.c ops/own_attention.c ops/own_pool.c ops/own_recurrent.c ops/own_rows.c
    ops/own_sums.c ops/own_update.c)
set(device_kernels kernels/attention.cu kernels/attention_tiles.cu kernels/columns.cu
    kernels/move.cu kernels/pointwise.cu kernels/pool.cu kernels/recurrent.cu kernels/repack.cu
    kernels/rows.cu kernels/update.cu)
