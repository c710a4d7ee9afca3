//go:build !planted

package planted

// Bug reports whether the bug of that name is there. None is in this build.
func Bug(string) bool { return false }
