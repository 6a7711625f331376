// IntrusiveList: a doubly linked list whose links are part of its elements. Inserting and removing
// take constant time and allocate nothing.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_INTRUSIVE_LIST_H_
#define SLUICE_SERVER_TRANSPORT_RPC_INTRUSIVE_LIST_H_

namespace sluice::transport {

// Base class of an element, one for each list that it can be in. `Tag` distinguishes the lists.
template <typename T, typename Tag>
struct ListLink {
  bool linked() const { return previous != nullptr; }

  T* next = nullptr;
  T** previous = nullptr;  // the pointer that points to this element; null: in no list
};

// Owns nothing. An element must leave the list before it or the list is destroyed.
template <typename T, typename Tag>
class IntrusiveList {
 public:
  IntrusiveList() = default;
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const { return first_ == nullptr; }
  T* front() const { return first_; }
  static T* Next(const T& element) { return static_cast<const ListLink<T, Tag>&>(element).next; }
  static bool Contains(const T& element) {
    return static_cast<const ListLink<T, Tag>&>(element).linked();
  }

  // REQUIRES: the element is in no list of this tag.
  void PushFront(T& element) { InsertAt(&first_, element); }
  void PushBack(T& element) { InsertAt(end_, element); }

  // REQUIRES: the element is in this list.
  void Remove(T& element) {
    ListLink<T, Tag>& link = element;
    *link.previous = link.next;
    (link.next != nullptr ? LinkOf(*link.next).previous : end_) = link.previous;
    link.previous = nullptr;
  }
  // REQUIRES: not empty.
  T& PopFront() {
    T& element = *first_;
    Remove(element);
    return element;
  }

 private:
  static ListLink<T, Tag>& LinkOf(T& element) { return element; }

  void InsertAt(T** at, T& element) {
    ListLink<T, Tag>& link = element;
    link.next = *at;
    link.previous = at;
    (link.next != nullptr ? LinkOf(*link.next).previous : end_) = &link.next;
    *at = &element;
  }

  T* first_ = nullptr;
  T** end_ = &first_;  // where the pointer to the next last element goes
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_INTRUSIVE_LIST_H_
