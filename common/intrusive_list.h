// IntrusiveList: a doubly linked list whose links are part of its elements. Inserting and removing
// take constant time and allocate nothing.
#ifndef SLUICE_COMMON_INTRUSIVE_LIST_H_
#define SLUICE_COMMON_INTRUSIVE_LIST_H_

namespace sluice::common {

template <typename T, typename Tag>
class IntrusiveList;

// Base class of an element, one for each list that it can be in. `Tag` distinguishes the lists.
template <typename T, typename Tag>
class ListLink {
  friend T;
  friend class IntrusiveList<T, Tag>;
  ListLink() = default;

  T* next_ = nullptr;
  T** previous_ = nullptr;  // the pointer that points to this element; null: in no list
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
  static T* Next(const T& element) { return static_cast<const ListLink<T, Tag>&>(element).next_; }
  static bool Contains(const T& element) {
    return static_cast<const ListLink<T, Tag>&>(element).previous_ != nullptr;
  }

  // REQUIRES: the element is in no list of this tag.
  void PushFront(T& element) { InsertAt(&first_, element); }
  void PushBack(T& element) { InsertAt(end_, element); }

  // REQUIRES: the element is in this list.
  void Remove(T& element) {
    ListLink<T, Tag>& link = element;
    *link.previous_ = link.next_;
    (link.next_ != nullptr ? LinkOf(*link.next_).previous_ : end_) = link.previous_;
    link.previous_ = nullptr;
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
    link.next_ = *at;
    link.previous_ = at;
    (link.next_ != nullptr ? LinkOf(*link.next_).previous_ : end_) = &link.next_;
    *at = &element;
  }

  T* first_ = nullptr;
  T** end_ = &first_;  // where the pointer to the next last element goes
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_INTRUSIVE_LIST_H_
