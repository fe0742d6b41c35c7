// SPDX-License-Identifier: MIT
#include "experiments/progress.hpp"

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace unitscale::experiments {

std::string duration_text(double seconds) {
    const auto total = static_cast<long>(seconds + 0.5);
    char text[32];
    if (total >= 3600) std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", total / 3600, total / 60 % 60, total % 60);
    else std::snprintf(text, sizeof text, "%ld:%02ld", total / 60, total % 60);
    return text;
}

bool is_terminal(std::FILE* stream) {
#if __has_include(<unistd.h>)
    return isatty(fileno(stream)) == 1;
#else
    return stream == nullptr;
#endif
}

Progress::Progress(std::FILE* stream, std::size_t steps, bool quiet, bool terminal, const ProgressWords& words)
    : stream_(stream), steps_(steps), quiet_(quiet), terminal_(terminal), words_(words) {}

std::string Progress::line(std::size_t step, double measured, double speed, double seconds_left) const {
    std::string bar;
    if (terminal_) {
        constexpr std::size_t width = 24;
        bar = '[';
        for (std::size_t i = 1; i <= width; ++i) bar += i * steps_ <= width * step ? '#' : '.';
        bar += "] ";
    }
    char text[160];
    std::snprintf(text, sizeof text, "%s %zu/%zu  %.3f %s  %.0f %s  %s left", words_.step, step, steps_, measured,
                  words_.measured, speed, words_.speed, duration_text(seconds_left).c_str());
    return bar + text;
}

void Progress::update(std::size_t step, double measured, double speed, double seconds_left) {
    if (quiet_) return;
    const auto now = std::chrono::steady_clock::now();
    if (terminal_) {
        if (step != steps_ && now - last_ < std::chrono::milliseconds(100)) return;
        last_ = now;
        std::fprintf(stream_, "\r\033[K%s", line(step, measured, speed, seconds_left).c_str());
        drawn_ = true;
    } else if (step == 1 || step == steps_ || step * 10 / steps_ != (step - 1) * 10 / steps_) {
        std::fprintf(stream_, "%s\n", line(step, measured, speed, seconds_left).c_str());
    }
    std::fflush(stream_);
}

void Progress::finish() {
    if (drawn_) std::fputc('\n', stream_);
    drawn_ = false;
    std::fflush(stream_);
}

}  // namespace unitscale::experiments
