package realserver

import "syscall"

// endWithParent has the system kill a process when its parent has ended.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
