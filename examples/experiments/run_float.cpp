// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

namespace unitscale {

template class experiments::LanguageRun<float>;
template class train::SavedModel<float>;
template class analysis::Tracker<float>;

}  // namespace unitscale
