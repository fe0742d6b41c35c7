// SPDX-License-Identifier: MIT
#include <unitscale/io/atomic_folder.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <filesystem>
#include <string>
#include <vector>

using namespace unitscale;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    return names;
}

}  // namespace

TEST_CASE("atomic folder: the folder is there with all its files, or not at all") {
    const test::TemporaryFolder folder;
    const fs::path target = folder.path() / "model";
    {
        io::AtomicFolder made("save", target);
        CHECK(made.path().parent_path() == folder.path());
        io::write_atomically("save", made.path() / "a", "first");
        CHECK_FALSE(fs::exists(target));
    }
    CHECK(names_in(folder.path()).empty());
    for (const fs::path& path : {target, folder.path() / "empty" / "", folder.path() / "." / "dots"}) {
        io::AtomicFolder made("save", path);
        io::write_atomically("save", made.path() / "a", "first");
        io::write_atomically("save", made.path() / "b", "second");
        made.commit();
        CHECK(names_in(path).size() == 2);
        CHECK(test::TemporaryFolder::read(path / "b") == "second");
        CHECK_THROWS_WITH(made.commit(), "save: " + path.string() + " is committed twice");
    }
    CHECK(names_in(folder.path()).size() == 3);

    fs::create_directory(folder.path() / "there");
    io::AtomicFolder replaces("save", folder.path() / "there");
    io::write_atomically("save", replaces.path() / "a", "x");
    replaces.commit();
    CHECK(names_in(folder.path() / "there") == std::vector<std::string>{"a"});
}

TEST_CASE("atomic folder: a file, a folder with files and a missing folder above are errors, and nothing changes") {
    const test::TemporaryFolder folder;
    const fs::path file = folder.write("file", "x"), full = folder.write("full/a", "x").parent_path();
    const auto refused = [](const fs::path& path, const std::string& message) {
        CHECK_THROWS_WITH(io::AtomicFolder("save", path), "save: " + path.string() + message);
        CHECK_THROWS_WITH(io::check_new_folder("save", path), "save: " + path.string() + message);
    };
    refused(file, " is not a folder");
    refused(full, " exists; expected no or an empty folder");
    refused(folder.path() / "none" / "model", " cannot be written: No such file or directory");
    io::check_new_folder("save", folder.path() / "new");
    CHECK(names_in(folder.path()).size() == 2);

    // Files that came in the meantime are not lost.
    io::AtomicFolder late("save", folder.path() / "late");
    folder.write("late/a", "x");
    CHECK_THROWS_WITH(late.commit(),
                      Catch::StartsWith("save: " + (folder.path() / "late").string() + " cannot be written: "));
    CHECK(test::TemporaryFolder::read(folder.path() / "late" / "a") == "x");
}
