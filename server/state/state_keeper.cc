#include "server/state/state_keeper.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/random.h"

namespace sluice::state {
namespace {

using algorithm::Moment;
using std::chrono::steady_clock;
using store::MemoryStore;

// A token bucket's finest ticks count 9 years (token_bucket.h).
constexpr int64_t kMostNowNs = int64_t{8} * 365 * 24 * 3600 * 1'000'000'000;
// After a crash the last copy does not know which receipts were issued since. Ids that are used
// again would let one caller refund what another one took. More than are issued between two copies.
constexpr uint64_t kReceiptsSinceCopy = uint64_t{1} << 40;
// A copy works and pauses in turns, so that it keeps no decision from a core for long.
constexpr std::chrono::microseconds kCopyStep{100};
constexpr std::chrono::microseconds kCopyPause{1000};
// After so many failures the copy before them is not to be loaded any more: too much was granted
// since.
constexpr int kMostFailedCopies = 10;

int64_t MsSince(steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - start).count();
}

// The server's clock before the machine's, so that what is loaded is not ahead.
SavedState HeadOf(const StateKeeper::Sources& sources,
                  const std::function<MachineTime()>& machine) {
  SavedState state;
  state.now_ns = sources.clock.NowNs();
  state.machine = machine();
  state.receipt_key = sources.receipt_key();
  return state;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateKeeper>> StateKeeper::Open(Options options, common::Log* log) {
  std::unique_ptr<StateKeeper> keeper(new StateKeeper(std::move(options), log));
  const Options& with = keeper->options_;
  if (!with.folder.empty()) {
    auto folder = StateFolder::Open(with.folder, with.before_step, with.lock);
    if (!folder.ok()) return folder.status();
    keeper->folder_ = *std::move(folder);
  }
  if (with.handed_over.empty()) {
    keeper->Decide();
  } else if (absl::Status status = keeper->TakeHandedOver(); !status.ok()) {
    return status;
  }
  if (keeper->folder_ != nullptr) keeper->ReadHoldTerms();
  return keeper;
}

StateKeeper::~StateKeeper() {
  if (sources_ != nullptr) sources_->registry.BeforeChange(nullptr).IgnoreError();
  StopCopies();
}

void StateKeeper::Decide() {
  const std::optional<StateFolder::Run>& last = folder_->last_run();
  if (!last.has_value() && !folder_->HasState()) {
    log_.Info("state_new", {{"folder", options_.folder}});
    return;
  }
  const bool read = folder_->HasState() && ReadFile();
  clean_ = read && saved_.at_drain && last.has_value() && last->id == saved_.id;
  const bool trusted = read && options_.after_crash == AfterCrash::kTrust && last.has_value() &&
                       last->Trusts(saved_.id) && folder_->failed_copies() < kMostFailedCopies;
  const MachineTime now = options_.machine();
  if (clean_ || trusted) {
    start_ = Start::kLoad;
    clock_ahead_ns_ = saved_.now_ns + ElapsedNs(now) - now.boottime_ns;
    closed_slots_ = saved_.closed_slots;
  } else {
    start_ = Start::kEmpty;
    empty_since_ = Moment{now.boottime_ns, now.wall_ns};
  }
  if (clean_) return;
  log_.Warning(
      "unclean_stop",
      {{"folder", options_.folder},
       {"consequence", trusted ? "buckets start as in the last copy; what was decided since is lost"
                               : "buckets start empty"},
       {"copy_age", absl::FormatDuration(absl::Nanoseconds(trusted ? ElapsedNs(now) : 0))}});
}

absl::Status StateKeeper::TakeHandedOver() {
  if (absl::Status status = Check(); !status.ok()) return status;
  clean_ = true;
  start_ = Start::kLoad;
  closed_slots_ = saved_.closed_slots;
  const MachineTime now = options_.machine();
  clock_ahead_ns_ = saved_.now_ns + ElapsedNs(now) - now.boottime_ns;
  return absl::OkStatus();
}

absl::Status StateKeeper::Check() {
  absl::Status status = CheckState(loaded_path(), &saved_);
  const MachineTime now = options_.machine();
  if (status.ok() && ElapsedNs(now) > kMostNowNs - std::min(saved_.now_ns, kMostNowNs)) {
    status = absl::OutOfRangeError(
        absl::StrCat(loaded_path(), ": its clock has run for more than 8 years (",
                     absl::FormatDuration(absl::Nanoseconds(ElapsedNs(now))),
                     " since it was written); check the clock of this machine"));
  }
  return status;
}

// Returns false if the file cannot be used; then it was moved aside.
bool StateKeeper::ReadFile() {
  const absl::Status status = Check();
  if (status.ok()) return true;
  const absl::StatusOr<std::string> moved = folder_->MoveAside(options_.machine().wall_ns);
  log_.Error("state_unusable",
             {{"error", status.message()},
              {"moved_to", moved.ok() ? *moved : std::string(moved.status().message())}});
  return false;
}

// After a crash slots are closed until the latest end that may have been promised: after the last
// copy too.
void StateKeeper::ReadHoldTerms() {
  const MachineTime now = options_.machine();
  const int64_t now_ns = now.boottime_ns + clock_ahead_ns_;
  const absl::Status read = hold_terms_.Read(folder_->holds_path(), now, now_ns);
  if (!read.ok()) {
    log_.Error("hold_terms_unusable",
               {{"error", read.message()},
                {"consequence", "after a crash slots are closed for the present hold_for only"}});
  }
  if (clean_ || start_ == Start::kFull) return;
  hold_terms_.Close(now_ns, &closed_slots_);
}

// Before limits are in force: after a crash the greatest hold_for that was must be known. What is
// raised is recorded first, and only then what is lowered. So the folder has a record that is right
// for the limits in force, also if a change is refused though its record is on the disk.
absl::Status StateKeeper::NoteHoldTerms(const limits::LimitTable& table) {
  const int64_t now_ns = sources_->clock.NowNs();
  HoldTerms raised = hold_terms_;
  if (const std::optional<std::string> limit = raised.Raise(table)) {
    // From here on the record may be the one or the other.
    hold_terms_.SetRecorded(false);
    if (absl::Status status = WriteHoldTerms(raised, now_ns); !status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the hold_for of the limit \"", *limit,
                       "\" cannot be recorded in --state_dir (", status.message(),
                       "), so after a crash its slots could be granted twice; nothing was changed: "
                       "make room on the disk and load the limits again"));
    }
    raised.SetRecorded(true);
    hold_terms_ = std::move(raised);
  }
  if (!hold_terms_.Change(table, now_ns)) return absl::OkStatus();
  // If this fails, the record has the greater hold_for, or this one. The next change writes it
  // again.
  const absl::Status status = WriteHoldTerms(hold_terms_, now_ns);
  hold_terms_.SetRecorded(status.ok());
  if (!status.ok()) {
    log_.Error("hold_terms_not_saved",
               {{"error", status.message()},
                {"consequence", "after a crash slots may be closed for longer than is needed"}});
  }
  return absl::OkStatus();
}

absl::Status StateKeeper::WriteHoldTerms(const HoldTerms& terms, int64_t now_ns) {
  absl::Status status =
      terms.Write(folder_->new_holds_path(), folder_->before_step(), options_.machine(), now_ns);
  return status.ok() ? folder_->ReplaceHolds() : status;
}

void StateKeeper::SetOptions(store::MemoryStoreOptions* options) const {
  if (loads()) options->seed = saved_.seed;
  options->empty_since = loads() ? saved_.empty_since : empty_since_;
  options->closed_slots = closed_slots_;
}

absl::Status StateKeeper::Load(MemoryStore* store, limits::LimitRegistry* registry) {
  if (!loads()) return absl::OkStatus();
  const auto start = steady_clock::now();
  for (const auto& [limit, status] : registry->RestoreAdmin(saved_.limits)) {
    log_.Error("saved_limit_refused", {{"limit", limit}, {"error", status.message()}});
  }
  const auto loaded = LoadState(loaded_path(), saved_, store, registry);
  if (!loaded.ok()) return loaded.status();
  store->RestoreReceipts(saved_.next_receipt + (clean_ ? 0 : kReceiptsSinceCopy), loaded->refunded);
  if (loaded->without_room != 0) {
    // Which they are is not known any more.
    const MachineTime now = options_.machine();
    const int64_t now_ns = now.boottime_ns + clock_ahead_ns_;
    store::ClosedSlots closed = closed_slots_;
    hold_terms_.Close(now_ns, &closed);
    store->StartEmpty({now_ns, now.wall_ns}, std::move(closed));
    log_.Warning("state_too_large", {{"buckets", loaded->without_room},
                                     {"consequence", "all that are not in the table start empty"},
                                     {"advice", "raise --max_buckets or --memory_limit"}});
  }
  log_.Info("state_loaded", {{"buckets", saved_.buckets - loaded->without_room},
                             {"admin_limits", saved_.limits.admin.size()},
                             {"ms", MsSince(start)}});
  return absl::OkStatus();
}

absl::Status StateKeeper::Begin(Sources sources) {
  if (folder_ == nullptr) return absl::OkStatus();
  run_id_ = common::RandomWord() | 1;  // not 0
  if (options_.after_crash == AfterCrash::kTrust) trusted_ = LoadedIds();
  sources_ = std::make_unique<const Sources>(std::move(sources));
  absl::Status status = sources_->registry.BeforeChange(
      [this](const limits::LimitTable& table) { return NoteHoldTerms(table); });
  if (!status.ok()) return status;
  status = NoteStart();
  if (status.ok() || !options_.taken_back) return status;
  log_.Error("state_folder_not_writable",
             {{"folder", options_.folder},
              {"error", status.message()},
              {"consequence",
               "the server goes on; unless it can write to the folder when it "
               "drains, the next start is one after a crash"}});
  return absl::OkStatus();
}

absl::Status StateKeeper::NoteStart() {
  if (options_.after_crash != AfterCrash::kTrust) return NoteRun();
  // First the number that the folder has: then the file exists, and to write the new one needs no
  // room on the disk. Else a full disk could end the start once the run was noted, and a state that
  // was written at a drain would count as one after a crash.
  const int before = std::min(folder_->failed_copies(), kMostFailedCopies);
  failed_copies_ = FailedCopiesBefore();
  absl::Status status = folder_->NoteFailedCopies(before);
  if (status.ok()) status = NoteRun();
  if (!status.ok() || failed_copies_ == before) return status;
  status = folder_->NoteFailedCopies(failed_copies_);
  // One that is too high does no harm. The first copy writes it again.
  return failed_copies_ < before ? absl::OkStatus() : status;
}

int StateKeeper::FailedCopiesBefore() const {
  // The copies of the process that handed over, or what a crashed run left, which wrote no copy
  // since. Else the folder has a fresh state, or none that would be loaded.
  if (!options_.handed_over.empty()) return std::min(folder_->failed_copies(), kMostFailedCopies);
  return loads() && !clean_ ? folder_->failed_copies() + 1 : 0;
}

// What the state of the folder may be until the first copy.
std::array<uint64_t, 2> StateKeeper::LoadedIds() const {
  if (options_.handed_over.empty()) return {loads() ? saved_.id : 0, 0};
  // A copy of the process that handed over.
  const auto& last = folder_->last_run();
  return folder_->lock_was_given() && last.has_value() ? last->trusted : std::array<uint64_t, 2>();
}

void StateKeeper::StartCopies() {
  if (folder_ == nullptr || options_.after_crash != AfterCrash::kTrust) return;
  copies_ = std::thread([this] { CopyLoop(); });
}

absl::Status StateKeeper::Save() {
  if (folder_ == nullptr) return absl::OkStatus();
  StopCopies();
  // A process that was to take over, and was too late, may have noted its own run.
  if (absl::Status status = NoteRun(); !status.ok()) return status;
  return Write(/*at_drain=*/true);
}

absl::Status StateKeeper::Write(bool at_drain) {
  const auto start = steady_clock::now();
  auto file = StateFileWriter::Create(folder_->new_state_path(), folder_->before_step());
  if (!file.ok()) return file.status();
  SavedState state = HeadOf(*sources_, options_.machine);
  const uint64_t id = at_drain ? run_id_ : common::RandomWord() | 1;
  state.id = id;
  state.at_drain = at_drain;
  auto step_end = start + kCopyStep;
  const auto pause = [&]() -> absl::Status {
    if (at_drain || steady_clock::now() < step_end) return absl::OkStatus();
    if (Stopping()) return absl::CancelledError("the server drains");
    std::this_thread::sleep_for(kCopyPause);
    step_end = steady_clock::now() + kCopyStep;
    return absl::OkStatus();
  };
  const absl::StatusOr<uint64_t> buckets =
      WriteState(std::move(state), sources_->store, sources_->registry, file->get(), pause);
  if (!buckets.ok()) return buckets.status();
  if (!at_drain) {
    trusted_[1] = id;
    if (absl::Status status = NoteRun(); !status.ok()) return status;
  }
  if (absl::Status status = folder_->ReplaceState(); !status.ok()) return status;
  if (!at_drain) trusted_[0] = id;
  const uint64_t bytes = (*file)->bytes();
  if (at_drain) {
    log_.Info("state_saved", {{"buckets", *buckets}, {"bytes", bytes}, {"ms", MsSince(start)}});
  } else {
    log_.Info("state_copied", {{"buckets", *buckets}, {"bytes", bytes}, {"ms", MsSince(start)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<int> WriteHandedState(const StateKeeper::Sources& sources) {
  constexpr char kName[] = "the state in memory";
  const int fd = memfd_create("sluice-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return absl::ErrnoToStatus(errno, kName);
  absl::Cleanup close_it = [fd] { close(fd); };
  auto file = StateFileWriter::To(fd, kName);
  if (!file.ok()) return file.status();
  SavedState state = HeadOf(sources, &MachineTime::Now);
  state.id = common::RandomWord() | 1;
  state.at_drain = true;
  const absl::StatusOr<uint64_t> buckets =
      WriteState(std::move(state), sources.store, sources.registry, file->get(),
                 [] { return absl::OkStatus(); });
  if (!buckets.ok()) return buckets.status();
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return absl::ErrnoToStatus(errno, kName);
  }
  std::move(close_it).Cancel();
  return fd;
}

void StateKeeper::Copy() {
  const absl::Status status = Write(/*at_drain=*/false);
  if (!Stopping()) NoteCopy(status);
}

void StateKeeper::NoteCopy(const absl::Status& status) {
  const int failed = status.ok() ? 0 : std::min(failed_copies_ + 1, kMostFailedCopies);
  const absl::Status noted =
      failed == folder_->failed_copies() ? absl::OkStatus() : folder_->NoteFailedCopies(failed);
  failed_copies_ = failed;
  if (status.ok()) return;
  // A rename needs no room on the disk.
  if ((failed == kMostFailedCopies || !noted.ok()) && folder_->HasState()) {
    folder_->MoveAside(options_.machine().wall_ns).status().IgnoreError();
  }
  const bool stays = folder_->HasState();
  log_.Error("state_copy_failed", {{"error", status.message()},
                                   {"consequence", stays ? "the copy before it stays"
                                                         : "after a crash buckets start empty"}});
}

void StateKeeper::CopyLoop() {
  while (true) {
    Copy();
    const auto next = steady_clock::now() + std::chrono::nanoseconds(options_.copy_every_ns);
    common::MutexLock lock(&mu_);
    while (!stop_ && steady_clock::now() < next) wake_.WaitFor(&mu_, next - steady_clock::now());
    if (stop_) return;
  }
}

bool StateKeeper::Stopping() {
  common::MutexLock lock(&mu_);
  return stop_;
}

void StateKeeper::StopCopies() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
    wake_.SignalAll();
  }
  if (copies_.joinable()) copies_.join();
}

}  // namespace sluice::state
