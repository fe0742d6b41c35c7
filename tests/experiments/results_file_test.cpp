// SPDX-License-Identifier: MIT
#include "experiments/results_file.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::TemporaryFolder;
using Json = nlohmann::ordered_json;
using unitscale::test::error_of;

namespace {

const Json settings = {{"width", 16}, {"steps", 6}};

struct Lines {
    std::vector<int> numbers{};
    ResultsFile file;
    explicit Lines(const std::filesystem::path& path, const Json& shared = settings)
        : file(path, "sweep", shared, [this](const Json& line) { numbers.push_back(line.at("run").get<int>()); }) {}
};

}  // namespace

TEST_CASE("results file: a fingerprint is 16 digits of the text") {
    CHECK(fingerprint("a").size() == 16);
    CHECK(fingerprint("a") == fingerprint("a"));
    CHECK(fingerprint("a") != fingerprint("b"));
}

TEST_CASE("results file: it gives back its lines, wherever a kill has cut the last one") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "a.jsonl";
    { Lines(path).file.write({{"run", 12345}}); }
    CHECK(Lines(path).numbers == std::vector<int>{12345});
    const std::string whole = TemporaryFolder::read(path);
    CHECK(whole == "{\"sweep\":{\"width\":16,\"steps\":6}}\n{\"run\":12345}\n");
    for (std::size_t size = 0; size < whole.size(); ++size) {
        folder.write("a.jsonl", whole.substr(0, size));
        {
            Lines lines(path);
            CHECK(lines.numbers.empty());
            lines.file.write({{"run", 12345}});
        }
        CHECK(TemporaryFolder::read(path) == whole);
    }
}

TEST_CASE("results file: another sweep's file, or another kind of file, is left as it is, in one line") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "a.jsonl";
    const auto refused = [&](const std::string& text) {
        folder.write("a.jsonl", text);
        const std::string error = error_of([&] { Lines{path}; });
        CHECK(TemporaryFolder::read(path) == text);
        return error;
    };
    const std::string where = "sweep: " + path.string();
    CHECK(refused("{\"sweep\":{\"width\":32,\"steps\":6}}\n") ==
          where + " is of another sweep: its width is 32, not 16; choose another --out");
    CHECK(refused("{\"sweep\":{\"width\":16}}\n") ==
          where + " is of another sweep: its steps is \"not set\", not 6; choose another --out");
    CHECK(refused("{\"sweep\":{\"width\":16,\"steps\":6,\"decay\":0.5}}\n") ==
          where + " is of another sweep: its decay is 0.5, not \"not set\"; choose another --out");
    CHECK(refused("{\"comparison\":{\"width\":16}}\n") == where + " is not the file of a sweep; choose another --out");
    CHECK(refused("no JSON") == where + " is not the file of a sweep; choose another --out");
    CHECK(refused("{\"sweep\":{\"width\":16,\"steps\":6}}\n{\"run\":\"x\"}\n{\"run\":1}\n") ==
          where + ": line 2 is not that of a run");
    folder.write("a.jsonl", "");
    const Lines first(path);
    CHECK(error_of([&] { Lines{path}; }) == where + " is in use by another process");
}

TEST_CASE("results file: numbers that JSON does not have are read as NaN") {
    double number = 1.0;
    std::vector<double> numbers;
    std::string text;
    read_logged(Json("inf"), number);
    read_logged(Json({2.5, "nan"}), numbers);
    read_logged(Json("inf"), text);
    CHECK(std::isnan(number));
    REQUIRE(numbers.size() == 2);
    CHECK(numbers[0] == 2.5);
    CHECK(std::isnan(numbers[1]));
    CHECK(text == "inf");
}
