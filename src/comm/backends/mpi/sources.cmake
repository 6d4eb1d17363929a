# SPDX-License-Identifier: Apache-2.0
# The MPI modules: the same sources with each library's mpi.h, because their ABIs differ. Each is
# built where its compiler wrapper is installed.
foreach(mpi openmpi mpich)
  find_program(LOCKSTEP_MPICC_${mpi} mpicc.${mpi})
  mark_as_advanced(LOCKSTEP_MPICC_${mpi})
  set(flags)
  if(LOCKSTEP_MPICC_${mpi})
    execute_process(COMMAND ${LOCKSTEP_MPICC_${mpi}} -show OUTPUT_VARIABLE flags
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT flags)
    message(STATUS "backend mpi:${mpi}: not built (needs mpicc.${mpi})")
    continue()
  endif()
  string(REGEX MATCHALL "(^| )-I[^ ]+" includes "${flags}")
  string(REGEX MATCHALL "(^| )-[Ll][^ ]+" links "${flags}")
  string(REGEX REPLACE "(^|;| )-I" "\\1" includes "${includes}")
  string(REPLACE " " "" includes "${includes}")
  string(REPLACE " " "" links "${links}")
  add_library(lockstep_mpi-${mpi} MODULE backends/mpi/mpi_backend.c backends/mpi/mpi_calls.c
      backends/external/compose.c backends/external/external.c ../hub/collectives.c)
  target_include_directories(lockstep_mpi-${mpi} PRIVATE ${PROJECT_SOURCE_DIR}/include
                             ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(lockstep_mpi-${mpi} SYSTEM PRIVATE ${includes})
  target_link_libraries(lockstep_mpi-${mpi} PRIVATE ${links})
  install(TARGETS lockstep_mpi-${mpi} LIBRARY DESTINATION ${module_folder} COMPONENT ${mpi})
  message(STATUS "backend mpi:${mpi}: with ${LOCKSTEP_MPICC_${mpi}}")
endforeach()
