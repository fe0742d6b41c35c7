// SPDX-License-Identifier: MIT
// Signal-to-noise ratios of number formats on a normal tensor, over the tensor's scale: a figure and a table. See
// --help.

#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/report/snr_figure.hpp>

#include "program.hpp"

#include <CLI/CLI.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

std::string number(const char* pattern, double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), pattern, value);
    return text.data();
}

int run(const std::vector<std::string>& names, const std::string& out, unitscale::report::PageSource source) {
    using namespace unitscale::analysis;
    using namespace unitscale::report;
    std::vector<SnrCurve> curves;
    std::vector<std::vector<std::string>> rows = {
        {"format", "at scale 1", "in dB", "best", "at scale", "half of the best and more"}};
    for (const std::string& name : names) {
        const ScaledFormat format = find_scaled_format(name);
        curves.push_back(snr_curve(format, -32, 24, 8));
        const SnrCurve& curve = curves.back();
        const auto [low, high] = curve.good_range();
        const double at_one = format.signal_to_noise(1.0);
        rows.push_back({format.label, number("%.4g", at_one), number("%.2f", 10.0 * std::log10(at_one)),
                        number("%.4g", curve.ratios[curve.best()]), number("2^%.1f", curve.exponents[curve.best()]),
                        number("2^%.1f", low) + number(" to 2^%.1f", high)});
    }
    if (!out.empty()) unitscale::io::write_atomically("--out", out, snr_figure(curves, std::move(source)));
    std::printf("E[x^2] / E[(x - Q(x))^2] of a normal tensor, nearest even, saturating; blocks run along rows\n\n%s",
                unitscale::io::text_table(rows).c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    unitscale::wait_briefly(argv);
    std::vector<std::string> names = {"fp16", "bf16", "e5m2", "e4m3", "e5m2fnuz", "e4m3fnuz", "int8:180", "int8:60"};
    std::string out;
    CLI::App app(
        "Signal-to-noise ratio of number formats against the scale of a normal tensor: a table, and a figure as SVG.");
    app.add_option("--formats", names,
                   "formats and block formats by name, such as e4m3 and nvfp4; int8:R are the integers -127 to 127, "
                   "scaled to span -R to R")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--out", out, "write the figure to this file");
    return unitscale::examples::run_program(
        {"format_snr"}, app, argc, argv, [&] { return run(names, out, unitscale::examples::page_source(argc, argv)); });
}
