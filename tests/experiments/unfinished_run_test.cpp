// SPDX-License-Identifier: MIT

#include <unitscale/train/checkpoint.hpp>

#include "experiments/results_file.hpp"
#include "experiments/unfinished_run.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;

namespace {

/// The files of one run of 10 steps.
UnfinishedRun files_in(const std::filesystem::path& folder, const std::string& what = "a",
                       Measured measured = Measured::steps) {
    return {UnfinishedRun::path_in(folder, "my recipe/8-0.003-2", what), measured, 10};
}

void save(const std::filesystem::path& path, std::uint64_t step) {
    train::CheckpointWriter writer;
    writer.set_prefix("state/");
    writer.scalar("step", step);
    writer.write(path);
}

std::string lines(std::size_t count) {
    std::string text;
    for (std::size_t step = 1; step <= count; ++step)
        text += Json{{"step", step}, {"train", 1.0 / static_cast<double>(step)}}.dump() + "\n";
    return text;
}

}  // namespace

TEST_CASE("unfinished run: a new run has an empty log and its own name") {
    const TemporaryFolder folder;
    const UnfinishedRun first = files_in(folder.path()), second = files_in(folder.path(), "b");
    CHECK(first.lines().empty());
    CHECK_FALSE(first.can_resume());
    CHECK(TemporaryFolder::read(first.log()).empty());
    CHECK(first.log().filename().string().starts_with("my_recipe_8-0.003-2-"));
    CHECK(first.log() != second.log());
    CHECK(first.checkpoint().extension() == ".safetensors");
    UnfinishedRun::remove(UnfinishedRun::path_in(folder.path(), "my recipe/8-0.003-2", "a"));
    CHECK_FALSE(std::filesystem::exists(first.log()));
    CHECK(std::filesystem::exists(second.log()));
}

TEST_CASE("unfinished run: it continues from the checkpoint and drops later lines of the log") {
    const TemporaryFolder folder;
    const UnfinishedRun before = files_in(folder.path());
    const auto at = [&](std::uint64_t step, const std::string& log) {
        save(before.checkpoint(), step);
        folder.write(before.log().filename(), log);
        return files_in(folder.path());
    };
    CHECK(at(4, lines(6) + "{\"step\":7,\"tr").lines().size() == 4);
    CHECK(TemporaryFolder::read(before.log()) == lines(4));
    CHECK(std::filesystem::exists(before.checkpoint()));
    CHECK(at(4, lines(4)).lines().size() == 4);
    CHECK(at(4, lines(4)).can_resume());
    // If a line is missing, torn, or of another step, the run starts from its beginning.
    for (const std::string& log :
         {lines(3), lines(3) + "{\"step\":4,", lines(2) + "{\"step\":4}\n{\"step\":3}\n", std::string("7\n")}) {
        CAPTURE(log);
        CHECK_FALSE(at(4, log).can_resume());
        CHECK(before.lines().empty());
        CHECK_FALSE(std::filesystem::exists(before.checkpoint()));
        CHECK(TemporaryFolder::read(before.log()).empty());
    }
    CHECK(at(10, lines(10)).lines().empty());  // the last step: nothing would be left to measure
    folder.write(before.log().filename(), lines(4));
    folder.write(before.checkpoint().filename(), "no checkpoint");
    CHECK_FALSE(files_in(folder.path()).can_resume());
}

TEST_CASE("unfinished run: where losses alone are measured, the checkpoint decides and there is no log") {
    const TemporaryFolder folder;
    const UnfinishedRun before = files_in(folder.path(), "a", Measured::losses);
    CHECK_FALSE(before.can_resume());
    CHECK_FALSE(std::filesystem::exists(before.log()));
    save(before.checkpoint(), 4);
    CHECK(files_in(folder.path(), "a", Measured::losses).can_resume());
    save(before.checkpoint(), 10);
    CHECK(files_in(folder.path(), "a", Measured::losses).can_resume());
    CHECK_FALSE(files_in(folder.path(), "a", Measured::steps).can_resume());
    CHECK_FALSE(std::filesystem::exists(before.checkpoint()));
}

TEST_CASE("unfinished run: a label's strange signs become plain, and a long one is cut") {
    const TemporaryFolder folder;
    const std::string name = UnfinishedRun::path_in(folder.path(), "a/b, lr 2^-1\u00b5", "x").filename().string();
    CHECK(name == "a_b__lr_2_-1__-" + fingerprint("x"));
    CHECK(UnfinishedRun::path_in(folder.path(), std::string(1000, 'a'), "x").filename().string().size() ==
          100 + 1 + 16);
}
