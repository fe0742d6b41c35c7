// SPDX-License-Identifier: MIT
#include <unitscale/io/atomic_file.hpp>

#include "support/catch.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using io::AtomicFile;
using test::ChildProcess;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

void save(const fs::path& path, std::string_view text) {
    AtomicFile file("save", path);
    file.write(bytes_of(text));
    file.commit();
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

using Names = std::vector<std::string>;

void limit_files_to(rlim_t bytes) {
    const rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

TEST_CASE("a file appears under its name when it is committed, and nothing else is left") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.bin";
    const std::string one("a\0b\r\n", 5), two(100'000, 'z');
    {
        AtomicFile file("save", path);
        file.write(bytes_of(one));
        CHECK(!fs::exists(path));
        file.write(bytes_of(""));
        file.write(bytes_of(two));
        CHECK(!fs::exists(path));
        file.commit();
        CHECK(TemporaryFolder::read(path) == one + two);
        REQUIRE_THROWS_WITH(file.commit(), "save: " + path.string() + " is committed twice or after an error");
        REQUIRE_THROWS_WITH(file.write(bytes_of(one)),
                            "save: " + path.string() + " is written to after commit() or an error");
    }
    save(path, "");
    CHECK(TemporaryFolder::read(path).empty());
    CHECK(names_in(folder.path()) == Names{"x.bin"});
}

TEST_CASE("a file that is not committed leaves the old file") {
    const TemporaryFolder folder;
    const auto path = folder.write("x.bin", "before");
    {
        AtomicFile file("save", path);
        file.write(bytes_of("after"));
        CHECK(names_in(folder.path()).size() == 2);
    }
    CHECK(TemporaryFolder::read(path) == "before");
    CHECK(names_in(folder.path()) == Names{"x.bin"});
}

TEST_CASE("a path that cannot be written is an error of one line with operation, path and reason") {
    const TemporaryFolder folder;
    const auto missing = folder.path() / "missing" / "x.bin";
    REQUIRE_THROWS_WITH(AtomicFile("save", missing),
                        "save: " + missing.string() + " cannot be written: No such file or directory");
    REQUIRE_THROWS_WITH(AtomicFile("save", folder.path()), "save: " + folder.path().string() + " is a directory");
    REQUIRE_THROWS_WITH(AtomicFile("save", "/dev/null"), "save: /dev/null is not a regular file");
    REQUIRE_THROWS_WITH(AtomicFile("save", ""), "save:  names no file");
    const auto long_name = folder.path() / std::string(250, 'x');
    REQUIRE_THROWS_WITH(AtomicFile("save", long_name),
                        "save: " + long_name.string() + " cannot be written: File name too long");
    CHECK(names_in(folder.path()).empty());
}

TEST_CASE("a folder that may not be written to keeps its file") {
    const TemporaryFolder folder;
    const auto path = folder.write("x.bin", "before");
    fs::permissions(folder.path(),
                    fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
    ChildProcess child([&] {
        if (::geteuid() == 0 && ::setuid(65534) != 0)
            return std::string("no other user");  // nothing is forbidden to root
        save(path, "after");
        return std::string("saved");
    });
    const std::string text = child.text();
    fs::permissions(folder.path(), fs::perms::owner_all);
    CHECK((text == "save: " + path.string() + " cannot be written: Permission denied" || text == "no other user"));
    CHECK(TemporaryFolder::read(path) == "before");
    CHECK(names_in(folder.path()) == Names{"x.bin"});
}

TEST_CASE("a file-size limit is an error, not the end of the process, and the old file stays") {
    const TemporaryFolder folder;
    const auto path = folder.write("x.bin", "before");
    ChildProcess child([&] {
        limit_files_to(1000);
        AtomicFile file("save", path);
        std::string text;
        try {
            file.write(bytes_of(std::string(1001, 'x')));
        } catch (const Error& error) {
            text = error.what();
        }
        // The error is final, and the signal is neither pending nor blocked afterwards.
        try {
            file.commit();
        } catch (const Error&) {
            text += "; not committed";
        }
        sigset_t pending, blocked;
        sigpending(&pending);
        pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        if (sigismember(&pending, SIGXFSZ) == 0 && sigismember(&blocked, SIGXFSZ) == 0) text += "; as before";
        save(path.parent_path() / "small.bin", std::string(1000, 'x'));
        return text;
    });
    CHECK(child.text() == "save: " + path.string() + " cannot be written: File too large; not committed; as before");
    CHECK(child.signal() == 0);
    CHECK(TemporaryFolder::read(path) == "before");
    CHECK(names_in(folder.path()) == Names{"small.bin", "x.bin"});
}

TEST_CASE("outside of AtomicFile the file-size limit still ends the process") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.bin";
    ChildProcess child([&] {
        limit_files_to(4);
        save(path, "abcd");
        const int file = ::open(path.c_str(), O_WRONLY | O_APPEND);
        return std::string(::write(file, "e", 1) == 1 ? "written" : "not written");
    });
    CHECK(child.text().empty());
    CHECK(child.signal() == SIGXFSZ);
}

TEST_CASE("a link is followed, permissions are kept") {
    const TemporaryFolder folder;
    const auto path = folder.write("kept/x.bin", "before");
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
    const auto link = folder.path() / "latest.bin";
    fs::create_symlink("kept/x.bin", link);
    save(link, "after");
    CHECK(fs::is_symlink(link));
    CHECK(TemporaryFolder::read(path) == "after");
    CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read));
    CHECK(names_in(path.parent_path()) == Names{"x.bin"});
    const ::mode_t mask = ::umask(027);
    save(folder.path() / "new.bin", "new");
    ::umask(mask);
    CHECK(fs::status(folder.path() / "new.bin").permissions() ==
          (fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read));
}

TEST_CASE("a change of the working directory does not move the target") {
    const TemporaryFolder folder;
    ChildProcess child([&] {
        fs::current_path(folder.path());
        AtomicFile file("save", "x.bin");
        fs::current_path("/");
        file.write(bytes_of("text"));
        file.commit();
        return std::string("saved");
    });
    CHECK(child.text() == "saved");
    CHECK(TemporaryFolder::read(folder.path() / "x.bin") == "text");
}

TEST_CASE("a commit removes the temporary files of killed writers to its target, and no other file") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "x.bin";
    const std::string stale = "x.bin.0123456789abcdef.part";
    const Names others = {"x.bin.0123456789abcdeF.part", "x.bin.0123456789abcde.part", "x.bin.part",
                          "y.bin.0123456789abcdef.part", "x.bin.0123456789abcdef.parts"};
    folder.write(stale, "half");
    for (const std::string& name : others) folder.write(name, "other");
    ChildProcess killed([&]() -> std::string {
        AtomicFile file("save", path);
        file.write(bytes_of("half"));
        ::raise(SIGKILL);
        return "";
    });
    CHECK(killed.text().empty());
    CHECK(names_in(folder.path()).size() == others.size() + 2);
    CHECK(!fs::exists(path));
    {
        AtomicFile slow("save", path);  // still at work: locked
        slow.write(bytes_of("slow"));
        save(path, "fast");
        CHECK(names_in(folder.path()).size() == others.size() + 2);
        CHECK(!fs::exists(folder.path() / stale));
        CHECK(TemporaryFolder::read(path) == "fast");
        slow.commit();
        CHECK(TemporaryFolder::read(path) == "slow");
    }
    for (const std::string& name : others) fs::remove(folder.path() / name);
    CHECK(names_in(folder.path()) == Names{"x.bin"});
}

TEST_CASE("a file for one writer is made, keeps its content, and is locked until it is closed") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "log";
    {
        const io::FileDescriptor file = io::open_for_one_writer(path);
        REQUIRE(io::lock(file));
        CHECK(::write(file.number(), "line", 4) == 4);
        const io::FileDescriptor second = io::open_for_one_writer(path);
        CHECK(second.is_open());
        CHECK_FALSE(io::lock(second));
    }
    CHECK(fs::file_size(path) == 4);
    const io::FileDescriptor next = io::open_for_one_writer(path);
    CHECK(io::lock(next));
    CHECK(fs::file_size(path) == 4);
    CHECK_FALSE(io::open_for_one_writer(folder.path()).is_open());
    CHECK_FALSE(io::lock(io::FileDescriptor()));
}

TEST_CASE("write_atomically makes or replaces a file, and nothing else is left") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "report.html";
    io::write_atomically("report", path, "one");
    CHECK(TemporaryFolder::read(path) == "one");
    const std::string bytes("a\0b\r\n", 5);
    io::write_atomically("report", path, bytes);
    CHECK(TemporaryFolder::read(path) == bytes);
    io::write_atomically("report", path, "");
    CHECK(TemporaryFolder::read(path).empty());
    CHECK(names_in(folder.path()) == Names{"report.html"});
}

TEST_CASE("write_atomically leaves the old file, and an error that names the path, where it cannot write") {
    const TemporaryFolder folder;
    const auto missing = folder.path() / "missing" / "report.html";
    REQUIRE_THROWS_WITH(io::write_atomically("report", missing, "text"),
                        "report: " + missing.string() + " cannot be written: No such file or directory");
    REQUIRE_THROWS_WITH(io::write_atomically("report", folder.path(), "text"),
                        "report: " + folder.path().string() + " is a directory");
    const auto path = folder.write("report.html", "before");
    ChildProcess child([&] {
        limit_files_to(1000);
        io::write_atomically("report", path, std::string(1001, 'x'));
        return std::string("written");
    });
    CHECK(child.text() == "report: " + path.string() + " cannot be written: File too large");
    CHECK(TemporaryFolder::read(path) == "before");
    CHECK(names_in(folder.path()) == Names{"report.html"});
}

TEST_CASE("write_atomically writes to a pipe or a device directly") {
    const TemporaryFolder folder;
    const auto pipe = folder.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
    io::check_writable("report", pipe);
    io::write_atomically("report", pipe, "text");
    std::string text(5, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(reader, text.data(), text.size()))));
    ::close(reader);
    CHECK(text == "text");
    CHECK(fs::is_fifo(pipe));
    if (fs::exists("/dev/full"))
        REQUIRE_THROWS_WITH(io::write_atomically("report", "/dev/full", "text"), "report: /dev/full cannot be written");
}

TEST_CASE("check_writable knows beforehand whether a path can be written, and changes nothing") {
    const TemporaryFolder folder;
    const auto path = folder.write("report.html", "old");
    io::check_writable("report", path);
    CHECK(TemporaryFolder::read(path) == "old");
    io::check_writable("report", folder.path() / "new.html");
    CHECK(names_in(folder.path()) == Names{"report.html"});
    const auto missing = folder.path() / "missing" / "report.html";
    REQUIRE_THROWS_WITH(io::check_writable("report", missing), "report: " + missing.string() + " cannot be written");
    REQUIRE_THROWS_WITH(io::check_writable("report", folder.path()),
                        "report: " + folder.path().string() + " cannot be written");
}
