// SPDX-License-Identifier: MIT
#include "experiments/language_run.hpp"

namespace unitscale {

template class experiments::LanguageRun<BFloat16>;
template class train::SavedModel<BFloat16>;
template class analysis::Tracker<BFloat16>;

}  // namespace unitscale
