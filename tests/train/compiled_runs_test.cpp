// SPDX-License-Identifier: MIT
#include <unitscale/train/compiled_runs.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstdio>
#include <string>

using namespace unitscale;

// This source holds neither runs nor saved models: that it links says that others have compiled them.
TEST_CASE("runs compiled elsewhere train, are tracked and are saved in every element type") {
    const test::TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 40; ++i) text += "a stitch in time saves nine\n";
    train::LanguageRunOptions options{.data = {folder.write("text.txt", text)},
                                      .width = 8,
                                      .depth = 1,
                                      .heads = 2,
                                      .seq = 8,
                                      .batch = 2,
                                      .steps = 2,
                                      .sample = 0,
                                      .quiet = true};
    options.save = (folder.path() / "run.safetensors").string();
    const auto train_as = [&]<class T>(const char* recipe, std::type_identity<T>) {
        INFO(recipe);
        options.recipe = recipe;
        train::LanguageRun<T> run(options);
        analysis::Tracker<T> tracker({.every = 1});
        run.tape().set_observer(&tracker);
        const auto result = run.run(stdout, stderr);
        CHECK(result.valid_bpc > 0.0);
        CHECK(result.weight_bytes == sizeof(T) * run.model().parameter_count());
        CHECK(tracker.finish().tensors.size() > 10);
        train::SavedModel<T> saved(options.save);
        CHECK(saved.state().step() == 2);
        CHECK(saved.recipe().name == recipe);
    };
    train_as("fp32", std::type_identity<float>{});
    train_as("fp16", std::type_identity<Half>{});
    train_as("bf16", std::type_identity<BFloat16>{});
    options.recipe = "bf16";
    CHECK_THROWS_WITH(train::LanguageRun<float>(options),
                      "LanguageRun: recipe bf16 computes in bf16, which is not this template's type; see train::with_storage");
}
