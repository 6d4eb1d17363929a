# SPDX-License-Identifier: Apache-2.0
# The NCCL module. It needs no header or library of NCCL, which it loads when it is opened.
add_library(lockstep_nccl MODULE backends/nccl/nccl_api.c backends/nccl/nccl_backend.c
    backends/nccl/nccl_calls.c backends/nccl/nccl_ending.c backends/nccl/nccl_group.c
    backends/nccl/nccl_memory.c backends/external/compose.c ../hub/collectives.c)
target_include_directories(lockstep_nccl PRIVATE ${PROJECT_SOURCE_DIR}/include
                           ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(lockstep_nccl PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS lockstep_nccl LIBRARY DESTINATION ${module_folder} COMPONENT library)
