// SPDX-License-Identifier: MIT
#include <unitscale/io/whole_file.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <string>

using namespace unitscale;
using test::TemporaryFolder;

namespace {

std::size_t files_in(const std::filesystem::path& folder) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
    return count;
}

}  // namespace

TEST_CASE("whole file: a file is made or replaced, and nothing else is left") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "report.html";
    io::write_whole("report", path, "one");
    CHECK(TemporaryFolder::read(path) == "one");
    const std::string bytes("a\0b\r\n", 5);
    io::write_whole("report", path, bytes);
    CHECK(TemporaryFolder::read(path) == bytes);
    io::write_whole("report", path, "");
    CHECK(TemporaryFolder::read(path).empty());
    CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("whole file: what cannot be written is one clear error and leaves nothing") {
    const TemporaryFolder folder;
    const auto missing = folder.path() / "missing" / "report.html";
    REQUIRE_THROWS_WITH(io::write_whole("report", missing, "text"),
                        "report: " + missing.string() + " cannot be written");
    const auto taken = folder.path() / "folder";
    std::filesystem::create_directory(taken);
    REQUIRE_THROWS_WITH(io::write_whole("report", taken, "text"), "report: " + taken.string() + " cannot be written");
    CHECK(files_in(folder.path()) == 1);
    if (std::filesystem::exists("/dev/full"))
        REQUIRE_THROWS_WITH(io::write_whole("report", "/dev/full", "text"), "report: /dev/full cannot be written");
}

TEST_CASE("whole file: whether a path can be written is known before, and looking changes nothing") {
    const TemporaryFolder folder;
    const auto path = folder.write("report.html", "old");
    io::check_writable("report", path);
    CHECK(TemporaryFolder::read(path) == "old");
    io::check_writable("report", folder.path() / "new.html");
    CHECK(files_in(folder.path()) == 1);
    const auto missing = folder.path() / "missing" / "report.html";
    REQUIRE_THROWS_WITH(io::check_writable("report", missing), "report: " + missing.string() + " cannot be written");
    REQUIRE_THROWS_WITH(io::check_writable("report", folder.path()),
                        "report: " + folder.path().string() + " cannot be written");
}
