//! What a plugin author uses: a safe trait and export_plugin! over plugin-abi.
