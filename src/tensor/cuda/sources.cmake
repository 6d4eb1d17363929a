# SPDX-License-Identifier: Apache-2.0
# What the CUDA device has in common with the tests' device of the same sources.
set(device_sources conv_graph.c cuda_accel.c cuda_conv2d.c cuda_device.c cuda_graph.c cuda_linear.c
    cuda_math.c dnn_cache.c dnn_graph.c packed.c plan_file.c own_binary.c own_elements.c own_move.c
    own_norm.c own_operands.c own_attention.c own_pool.c own_recurrent.c own_rows.c own_sums.c
    own_update.c)
set(device_kernels attention.cu columns.cu move.cu pointwise.cu pool.cu recurrent.cu repack.cu
    rows.cu update.cu)
