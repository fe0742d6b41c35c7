// SPDX-License-Identifier: MIT
#include <unitscale/report/write_report.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/trainer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

using namespace unitscale;
using test::TemporaryFolder;

TEST_CASE("write_report: the page about a trainer's tracked steps") {
    nn::Linear<float> model("layer", {.in = 4, .out = 3});
    train::Trainer<float> trainer(model, find_recipe("unit-fp8"), {.schedule = {.peak = 0.0, .steps = 4}});
    const TemporaryFolder folder;
    const std::filesystem::path path = folder.path() / "run.html";
    REQUIRE_THROWS_WITH(report::write_report(path, trainer, "a run"),
                        "Trainer: no statistics; call track() before the first step");
    CHECK_FALSE(std::filesystem::exists(path));

    trainer.track({.name = "tracked", .every = 2});
    const Tensor<float> x = normal<float>({8, 4}, {1, 1});
    const Tensor<std::int32_t> labels({8}, {0, 1, 2, 0, 1, 2, 0, 1});
    for (std::size_t step = 0; step < 3; ++step)
        trainer.step(
            [&](Tape<float>& tape, std::size_t) { return ops::softmax_cross_entropy(model(tape.input(x)), labels); });
    const report::PageSource source{.data = "numbers", .date = "2026-11-24", .command = "train"};
    report::write_report(path, trainer, "a run of three steps", source);
    const std::array tracks{trainer.finished_track()};
    CHECK(TemporaryFolder::read(path) == report::html_report(tracks, "a run of three steps", source));
    CHECK(TemporaryFolder::read(path).find("layer/weight") != std::string::npos);
    REQUIRE_THROWS_WITH(report::write_report(folder.path() / "none" / "run.html", trainer, "a run"),
                        Catch::Contains("none/run.html"));
}
