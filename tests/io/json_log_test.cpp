// SPDX-License-Identifier: MIT
#include <unitscale/io/json_log.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale::io;
using unitscale::test::TemporaryFolder;

TEST_CASE("every write is one complete JSON line with its keys in order, on disk when it returns") {
    const TemporaryFolder folder;
    const auto path = folder.write("log.jsonl", "what an earlier run left\n");
    JsonLog log(path);
    REQUIRE(TemporaryFolder::read(path).empty());
    log.write({{"step", 1}, {"loss", 2.5}, {"note", "a \"quoted\"\nline"}});
    REQUIRE(TemporaryFolder::read(path) == "{\"step\":1,\"loss\":2.5,\"note\":\"a \\\"quoted\\\"\\nline\"}\n");
    log.write({{"step", 2}, {"loss", 0.1}, {"list", {1, 2}}});
    std::istringstream lines(TemporaryFolder::read(path));
    std::vector<nlohmann::json> parsed;
    for (std::string line; std::getline(lines, line);) parsed.push_back(nlohmann::json::parse(line));
    REQUIRE(parsed.size() == 2);
    REQUIRE(parsed[0]["note"] == "a \"quoted\"\nline");
    REQUIRE(parsed[1]["step"] == 2);
    REQUIRE(parsed[1]["loss"].get<double>() == 0.1);
    REQUIRE(parsed[1]["list"].size() == 2);
}

TEST_CASE("numbers that JSON does not have are written by name, at any depth") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "log.jsonl";
    JsonLog log(path);
    const double infinity = std::numeric_limits<double>::infinity();
    log.write({{"loss", std::numeric_limits<double>::quiet_NaN()},
               {"norms", {infinity, 1.0}},
               {"inner", {{"x", -infinity}}}});
    REQUIRE(TemporaryFolder::read(path) == "{\"loss\":\"nan\",\"norms\":[\"inf\",1.0],\"inner\":{\"x\":\"-inf\"}}\n");
}

TEST_CASE("text that is not UTF-8 does not stop the log") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "log.jsonl";
    JsonLog(path).write({{"sample", "a\xff"}});
    REQUIRE(nlohmann::json::parse(TemporaryFolder::read(path))["sample"] == "a\xef\xbf\xbd");
}

TEST_CASE("a log that cannot be opened or written, or a line that is no object, is an error that names the path") {
    const TemporaryFolder folder;
    const std::string path = folder.path().string();
    REQUIRE_THROWS_WITH(JsonLog(folder.path() / "missing" / "log.jsonl"),
                        "log: " + path + "/missing/log.jsonl cannot be opened for writing");
    JsonLog log(folder.path() / "log.jsonl");
    REQUIRE_THROWS_WITH(log.write(nlohmann::ordered_json(3)),
                        "log: " + path + "/log.jsonl: a line is an object, not number");
    if (std::filesystem::exists("/dev/full")) {
        JsonLog full("/dev/full");
        REQUIRE_THROWS_WITH(full.write({{"step", 1}}), "log: /dev/full cannot be written");
    }
}

TEST_CASE("a log that is appended to keeps its lines") {
    const unitscale::test::TemporaryFolder folder;
    const auto path = folder.path() / "run.jsonl";
    unitscale::io::JsonLog(path).write({{"step", 1}});
    unitscale::io::JsonLog(path, true).write({{"step", 2}});
    std::ifstream file(path);
    std::string first, second;
    std::getline(file, first);
    std::getline(file, second);
    CHECK(first == "{\"step\":1}");
    CHECK(second == "{\"step\":2}");
    unitscale::io::JsonLog(path).write({{"step", 3}});
    std::ifstream again(path);
    std::getline(again, first);
    CHECK(first == "{\"step\":3}");
}
