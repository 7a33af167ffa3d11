# The stages' sources. include <- stage <- decode <- {hosts, cli, tests}; a stage never includes another stage.
foreach(_source
  src/summarize/summarize.cc
  src/summarize/summarize_reference.cc
  src/summarize/summarize_cpu.cc
  src/score/score.cc
  src/score/query.cc
  src/score/score_reference.cc
  src/score/score_cpu.cc
  src/select/select.cc
  src/select/largest.cc
  src/select/kernels_reference.cc
  src/select/kernels_cpu.cc
  src/select/pages.cc
  src/select/parts.cc
  src/select/completion.cc
  src/attend/attend.cc
  src/attend/attend_reference.cc
  src/attend/attend_cpu.cc
  src/attend/complete.cc
  src/attend/complete_reference.cc
  src/attend/complete_cpu.cc
  src/attend/prefill.cc
  src/attend/prefill_reference.cc
  src/attend/prefill_cpu.cc
  src/decode/buffers.cc
  src/decode/decode.cc
  src/decode/step.cc
  src/decode/choice.cc
  src/decode/run.cc
  src/decode/locks_c.cc
)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${_source})
    list(APPEND LOCKS_SOURCES ${_source})
  endif()
endforeach()
