// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/train/language_run.hpp>
#include <unitscale/train/saved_model.hpp>

// Training runs and saved models, compiled in one source of a program for each element type, as unitscale/compiled.hpp does for the
// library. One source of the program, for each of float, Half and BFloat16:
//   #define UNITSCALE_COMPILE_RUNS float
//   #include <unitscale/train/compiled_runs.hpp>
// Test: tests/train/compiled_runs_test.cpp
namespace unitscale {

extern template class train::LanguageRun<float>;
extern template class train::LanguageRun<Half>;
extern template class train::LanguageRun<BFloat16>;
extern template class train::SavedModel<float>;
extern template class train::SavedModel<Half>;
extern template class train::SavedModel<BFloat16>;
extern template class analysis::Tracker<float>;
extern template class analysis::Tracker<Half>;
extern template class analysis::Tracker<BFloat16>;
#ifdef UNITSCALE_COMPILE_RUNS
template class train::LanguageRun<UNITSCALE_COMPILE_RUNS>;
template class train::SavedModel<UNITSCALE_COMPILE_RUNS>;
template class analysis::Tracker<UNITSCALE_COMPILE_RUNS>;
#endif

}  // namespace unitscale
