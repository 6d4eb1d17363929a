# SPDX-License-Identifier: Apache-2.0
# The NCCL module. It needs no header or library of NCCL, which it loads when it is opened.
add_library(lockstep_nccl MODULE nccl/nccl_api.c nccl/nccl_backend.c nccl/nccl_calls.c
            nccl/nccl_ending.c nccl/nccl_group.c nccl/nccl_memory.c compose.c
            ../store/collectives.c)
target_include_directories(lockstep_nccl PRIVATE ${PROJECT_SOURCE_DIR}/include
                           ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(lockstep_nccl PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS lockstep_nccl LIBRARY DESTINATION ${module_folder} COMPONENT library)
